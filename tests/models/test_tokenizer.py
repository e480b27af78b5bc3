"""Tokenizers: equal ids with the transformers library, exact bytes, a clear refusal of what cannot work."""

from __future__ import annotations

import functools
import json
import random
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from support.texts import PIECES, texts
from tokenmill.core.errors import InvalidRequest, ModelFileError
from tokenmill.models.gguf_tokenizer import SPLITS
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer
from tokenmill.models.tokenizer_files import TokenizerFiles
from tokenmill.models.tokenizer_parts import no_panic

CORPUS = texts(1, 600) + ["the cat sat on the mat because it was tired"] * 50


@pytest.fixture(scope="module")
def small(small_model_path: Path) -> Tokenizer:
    source = open_model(small_model_path)
    source.weights.close()
    return load_tokenizer(source.tokenizer_files, source.spec.vocab_size)


@pytest.fixture(scope="module")
def reference(small_model_path: Path) -> Any:
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(small_model_path.parent, gguf_file=small_model_path.name)


class TestSmallModel:
    def test_ids_equal_transformers(self, small: Tokenizer, reference: Any) -> None:
        # transformers does not know the word "smollm" in tokenizer.ggml.pre and leaves digits unsplit; with
        # the splitter of the model's own tokenizer.json (digits, then byte level) it must agree everywhere.
        backend = reference.backend_tokenizer
        unsplit = backend.pre_tokenizer
        for text in texts(2, 400, tuple(piece for piece in PIECES if not any(map(str.isnumeric, piece)))):
            assert small.encode(text, add_special=False) == reference.encode(text), text
        try:
            backend.pre_tokenizer = pre_tokenizers.Sequence(
                [pre_tokenizers.Digits(individual_digits=True), unsplit]
            )
            for text in texts(3, 400):
                assert small.encode(text, add_special=False) == reference.encode(text), text
        finally:
            backend.pre_tokenizer = unsplit

    def test_text_survives_the_round_trip(self, small: Tokenizer) -> None:
        for text in texts(4, 300):
            assert small.decode(small.encode(text, add_special=False)) == text

    def test_decode_equals_transformers_also_for_broken_characters(
        self, small: Tokenizer, reference: Any
    ) -> None:
        rng = random.Random(5)
        for _ in range(300):
            ids = [rng.randrange(small.vocab_size) for _ in range(rng.randint(0, 12))]
            for skip in (True, False):
                expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
                assert small.decode(ids, skip_special=skip) == expected, ids

    def test_special_tokens_in_the_text_are_parsed_and_have_no_bytes(self, small: Tokenizer) -> None:
        ids = small.encode("a<|im_end|>", add_special=True)
        assert ids[-1] == 2
        assert small.token_bytes(2) == b""
        assert small.token_text(2) == "<|im_end|>"
        assert small.decode(ids) == "a"
        assert small.decode(ids, skip_special=False) == "a<|im_end|>"

    def test_begin_and_ends(self, small: Tokenizer) -> None:
        assert (small.bos_id, small.bos_token, small.eos_token) == (1, "<|im_start|>", "<|im_end|>")
        assert small.eos_ids == (2, 0)  # its EOS and <|endoftext|>
        assert not small.add_bos
        assert small.encode("a", add_special=True) == small.encode("a", add_special=False)

    def test_half_a_character_is_shown_as_incomplete(self, small: Tokenizer) -> None:
        ids = small.encode("😀", add_special=False)
        assert len(ids) > 1
        assert b"".join(map(small.token_bytes, ids)) == "😀".encode()
        assert all("\ufffd" in small.token_text(token) for token in ids)

    def test_ids_outside_the_vocabulary_are_nothing(self, small: Tokenizer) -> None:
        assert small.token_bytes(10**9) == small.token_bytes(-1) == b""
        assert small.decode([10**9, -1]) == ""

    def test_a_lone_surrogate_is_refused(self, small: Tokenizer) -> None:
        with pytest.raises(InvalidRequest, match="surrogate"):
            small.encode("a\ud800", add_special=False)

    def test_encoding_a_large_text_lets_other_threads_run(self, small: Tokenizer) -> None:
        text = "some words and 12 numbers\n" * 40_000
        started, finished = threading.Event(), threading.Event()

        def work() -> None:
            started.set()
            small.encode(text, add_special=False)
            finished.set()

        interval = sys.getswitchinterval()
        sys.setswitchinterval(1e-4)
        thread = threading.Thread(target=work)
        try:
            thread.start()
            started.wait()
            turns = 0
            while not finished.wait(0.001):
                turns += 1
        finally:
            thread.join()
            sys.setswitchinterval(interval)
        # With the GIL held throughout, the main thread gets a turn or two at the edges.
        assert turns > 10


@settings(max_examples=200, deadline=None)
@given(
    # Not SentencePiece's space mark, nor the first letter of special tokens.
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="▁<"))
)
def test_bytes_of_tokens_are_the_bytes_of_the_text(text: str) -> None:
    for tokenizer in (_byte_level(), _sentencepiece()):
        ids = tokenizer.encode(text, add_special=False)
        joined = b"".join(map(tokenizer.token_bytes, ids))
        if tokenizer.first_token_strips_space:
            assert joined == (b" " + text.encode() if text else b"")
        else:
            assert joined == text.encode()
        assert tokenizer.decode(ids) == text


def test_the_longest_token_counts_special_tokens_by_name(small: Tokenizer) -> None:
    ordinary = max(len(small.token_bytes(number)) for number in range(small.vocab_size))
    special = max(len(small.token_text(number).encode()) for number in (small.bos_id or 0, *small.eos_ids))
    assert small.longest_token_bytes >= max(ordinary, special)
    assert small.longest_token_bytes < 1000


class TestByteLevel:
    """GGUF metadata made from a trained byte-level tokenizer gives that tokenizer back."""

    @pytest.mark.parametrize("pre", ["gpt-2", "default", None])
    def test_ids_equal_the_trained_tokenizer(self, pre: str | None) -> None:
        trained = _train_byte_level()
        metadata = _byte_level_metadata(trained)
        metadata |= {"tokenizer.ggml.pre": pre} if pre else {}
        _same_ids(trained, _load(metadata, trained))

    @pytest.mark.parametrize("pre", ["llama-bpe", "qwen2", "tekken"])
    def test_every_known_split_keeps_the_text(self, pre: str) -> None:
        trained = _train_byte_level()
        loaded = _load(_byte_level_metadata(trained) | {"tokenizer.ggml.pre": pre}, trained)
        for text in texts(6, 100, tuple(piece for piece in PIECES if piece.isascii())):
            assert loaded.decode(loaded.encode(text, add_special=False)) == text

    @pytest.mark.parametrize(
        ("pre", "name"), [("llama-bpe", "llama3"), ("qwen2", "qwen2"), ("tekken", "tekken")]
    )
    def test_splits_equal_those_transformers_knows(self, pre: str, name: str) -> None:
        from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

        assert SPLITS[pre].pattern == GGUF_PRE_TOKENIZER_SPLITS[name]

    def test_a_word_that_is_a_token_is_taken_whole_where_the_model_says_so(self) -> None:
        tokens = ["a", "b", "c", "ab", "bc", "abc"]
        merges = ["b c", "a b"]  # merging alone gives a + bc and never abc
        common = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": merges,
        }
        common |= {"tokenizer.ggml.merges": merges}
        ids = {
            pre: load_tokenizer(
                TokenizerFiles(
                    gguf=common | {"tokenizer.ggml.pre": pre, "tokenizer.ggml.add_bos_token": False}
                ),
                6,
            ).encode("abc", add_special=False)
            for pre in ("gpt-2", "llama-bpe")
        }
        assert ids == {"gpt-2": [0, 4], "llama-bpe": [5]}

    def test_bos_is_added_where_the_file_or_the_kind_says_so(self) -> None:
        trained = _train_byte_level()
        metadata = _byte_level_metadata(trained) | {"tokenizer.ggml.bos_token_id": 0}
        for extra, expected in (
            ({}, False),
            ({"tokenizer.ggml.add_bos_token": True}, True),
            ({"tokenizer.ggml.pre": "llama-bpe"}, True),
            ({"tokenizer.ggml.pre": "llama-bpe", "tokenizer.ggml.add_bos_token": False}, False),
        ):
            loaded = _load(metadata | extra, trained)
            assert loaded.add_bos is expected
            assert (loaded.encode("a", add_special=True)[0] == 0) is expected
            assert 0 not in loaded.encode("a", add_special=False)

    def test_user_defined_tokens_are_matched_whole_and_keep_their_text(self) -> None:
        trained = _train_byte_level()
        metadata = _byte_level_metadata(trained)
        number = len(metadata["tokenizer.ggml.tokens"])
        metadata["tokenizer.ggml.tokens"].append("<think it>")
        metadata["tokenizer.ggml.token_type"].append(4)
        loaded = load_tokenizer(TokenizerFiles(gguf=metadata), number + 1)
        assert number in loaded.encode("a<think it>b", add_special=False)
        assert loaded.token_bytes(number) == b"<think it>"
        assert loaded.special_tokens == {"<|endoftext|>": 0, "<think it>": number}


class TestSentencePiece:
    def test_ids_equal_the_trained_tokenizer(self) -> None:
        trained = _train_sentencepiece()
        _same_ids(trained, _load(_sentencepiece_metadata(trained), trained))

    def test_ids_equal_transformers(self) -> None:
        # transformers' class takes a text's own first space for the mark SentencePiece puts before it, so the
        # texts here begin with a letter; it merges by the same scores.
        from transformers import LlamaTokenizer
        from transformers.tokenization_utils_base import generate_merges

        trained = _train_sentencepiece()
        metadata = _sentencepiece_metadata(trained)
        tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
        vocab = {token: number for number, token in enumerate(tokens)}
        merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)))
        reference = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=False)
        loaded = _load(metadata, trained)
        for text in texts(7, 200):
            text = "x" + text
            assert loaded.encode(text, add_special=False) == reference.encode(text, add_special_tokens=False)

    def test_unknown_characters_fall_back_to_bytes(self) -> None:
        loaded = _sentencepiece()
        ids = loaded.encode("𓀀", add_special=False)
        assert b"".join(map(loaded.token_bytes, ids)) == " 𓀀".encode()
        assert loaded.decode(ids) == "𓀀"

    def test_the_first_space_is_stripped_once(self) -> None:
        loaded = _sentencepiece()
        assert loaded.first_token_strips_space
        assert loaded.decode(loaded.encode("  two", add_special=False)) == "  two"

    def test_without_the_space_prefix_nothing_is_added_or_stripped(self) -> None:
        trained = _train_sentencepiece()
        metadata = _sentencepiece_metadata(trained) | {"tokenizer.ggml.add_space_prefix": False}
        loaded = _load(metadata, trained)
        assert not loaded.first_token_strips_space
        ids = loaded.encode("the", add_special=False)
        assert b"".join(map(loaded.token_bytes, ids)) == b"the"

    def test_bos_is_added_by_default(self) -> None:
        loaded = _sentencepiece()
        assert loaded.add_bos
        assert loaded.encode("a", add_special=True)[0] == loaded.bos_id == 1


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.update({"tokenizer.ggml.model": "rwkv"}), "known are gpt2 and llama"),
        (lambda m: m.pop("tokenizer.ggml.model"), "known are gpt2 and llama"),
        (lambda m: m.update({"tokenizer.ggml.pre": "klingon"}), "'klingon'; known are default, gpt-2"),
        (lambda m: m.update({"tokenizer.ggml.pre": 7}), "known are"),
        (lambda m: m.pop("tokenizer.ggml.tokens"), "must be a list of strings"),
        (lambda m: m.update({"tokenizer.ggml.tokens": ["a", 1]}), "must be a list of strings"),
        (lambda m: m.update({"tokenizer.ggml.tokens": ["a" * 5000]}), "5000 characters"),
        (lambda m: m.pop("tokenizer.ggml.merges"), "must be a list of strings"),
        (lambda m: m["tokenizer.ggml.merges"].append("nospace"), "not two tokens"),
        (lambda m: m["tokenizer.ggml.merges"].append("qqq zzz"), "does not fit the tokens"),
        (lambda m: m["tokenizer.ggml.token_type"].pop(), "entries for"),
        (lambda m: m.update({"tokenizer.ggml.bos_token_id": 10**6}), "bos_token_id is 1000000"),
        (lambda m: m.update({"tokenizer.ggml.eos_token_id": 10**6}), "eos_token_id is 1000000"),
        (lambda m: m.update({"tokenizer.ggml.add_bos_token": 1}), "must be true or false"),
        (lambda m: m.update({"tokenizer.ggml.add_bos_token": True}), "no tokenizer.ggml.bos_token_id"),
    ],
)
def test_metadata_that_cannot_work_is_refused(change: Change, message: str) -> None:
    metadata = _byte_level_metadata(_train_byte_level())
    change(metadata)
    with pytest.raises(ModelFileError, match=message):
        load_tokenizer(TokenizerFiles(gguf=metadata), 1000)


def test_random_metadata_gives_a_tokenizer_or_a_refusal() -> None:
    rng = random.Random(9)
    words = [
        "",
        "a",
        "b",
        "ab",
        "abc",
        "▁",
        "▁a",
        " ",
        "<s>",
        "<0x41>",
        "<0xZZ>",
        "é",
        "😀",
        "Ġ",
        "Ġa",
        "\x00",
    ]
    outcomes = set()
    for _ in range(1500):
        tokens = [rng.choice(words) for _ in range(rng.randint(0, 8))]
        metadata: dict[str, object] = {
            "tokenizer.ggml.model": rng.choice(["gpt2", "llama"]),
            "tokenizer.ggml.pre": rng.choice(["smollm", "default", "llama-bpe", "tekken", "qwen2"]),
            "tokenizer.ggml.tokens": tokens,
            "tokenizer.ggml.merges": [
                f"{rng.choice(words)} {rng.choice(words)}" for _ in range(rng.randint(1, 2))
            ],
            "tokenizer.ggml.scores": [rng.choice([0.0, -1.0, float("nan"), float("inf"), 1]) for _ in tokens],
            "tokenizer.ggml.token_type": [rng.randint(0, 7) for _ in tokens],
            "tokenizer.ggml.eos_token_id": rng.randint(-1, 9),
        }
        try:
            loaded = load_tokenizer(TokenizerFiles(gguf=metadata), rng.randint(1, 10))
        except ModelFileError:
            outcomes.add("refused")
        else:
            ids = loaded.encode("ab a😀 b<s>\x00é", add_special=True)
            outcomes.add(type(loaded.decode(ids)).__name__)
    assert outcomes == {"refused", "str"}


def test_a_panic_of_the_library_is_an_ordinary_error() -> None:
    panic = type("PanicException", (BaseException,), {})
    with pytest.raises(ModelFileError, match="it breaks"), no_panic("it breaks", ModelFileError):
        raise panic
    with pytest.raises(KeyboardInterrupt), no_panic("it breaks", ModelFileError):
        raise KeyboardInterrupt


def test_ends_are_read_as_the_models_configuration_reads_them() -> None:
    metadata = _sentencepiece_metadata(_train_sentencepiece())
    metadata |= {"tokenizer.ggml.eos_token_id": -1, "tokenizer.ggml.eot_token_id": [7, 2]}
    assert load_tokenizer(TokenizerFiles(gguf=metadata), 1000).eos_ids[:2] == (7, 2)


def test_a_special_token_beyond_the_weights_is_refused() -> None:
    metadata = _sentencepiece_metadata(_train_sentencepiece()) | {"tokenizer.ggml.eos_token_id": 200}
    with pytest.raises(ModelFileError, match="special token 200, the weights only ids up to 99"):
        load_tokenizer(TokenizerFiles(gguf=metadata), 100)


class TestFolder:
    def test_ids_equal_the_saved_tokenizer(self, tmp_path: Path) -> None:
        trained = _train_byte_level()
        trained.save(str(tmp_path / "tokenizer.json"))
        _same_ids(trained, load_tokenizer(TokenizerFiles(folder=tmp_path), trained.get_vocab_size()))

    def test_truncation_and_padding_of_the_file_do_not_apply(self, tmp_path: Path) -> None:
        trained = _train_byte_level()
        trained.enable_truncation(3)
        trained.enable_padding(length=40)
        trained.save(str(tmp_path / "tokenizer.json"))
        loaded = load_tokenizer(TokenizerFiles(folder=tmp_path), trained.get_vocab_size())
        assert (
            loaded.decode(loaded.encode("one two three four five", add_special=True))
            == "one two three four five"
        )

    def test_the_post_processor_says_what_comes_before_a_text(self, tmp_path: Path) -> None:
        loaded = _folder(tmp_path, post_processor=True, tokenizer_config={"bos_token": "<s>"})
        assert loaded.add_bos
        assert loaded.encode("a", add_special=True) == [1, *loaded.encode("a", add_special=False)]

    @pytest.mark.parametrize("wanted", [True, False])
    def test_the_configuration_has_the_last_word(self, tmp_path: Path, wanted: bool) -> None:
        config = {"bos_token": "<s>", "add_bos_token": wanted}
        loaded = _folder(tmp_path, post_processor=not wanted, tokenizer_config=config)
        assert loaded.add_bos is wanted

    def test_every_file_may_name_an_end(self, tmp_path: Path) -> None:
        loaded = _folder(
            tmp_path,
            tokenizer_config={"eos_token": {"content": "</s>"}, "bos_token": None},
            generation_config={"eos_token_id": [3, 2]},
            config={"eos_token_id": 4, "bos_token_id": 1},
        )
        assert loaded.eos_ids == (2, 3, 4)
        assert loaded.eos_token == "</s>"
        assert loaded.bos_id is None

    def test_the_map_of_special_tokens_is_read(self, tmp_path: Path) -> None:
        loaded = _folder(tmp_path, special_tokens_map={"bos_token": "<s>", "eos_token": "</s>"})
        assert (loaded.bos_id, loaded.eos_ids) == (1, (2,))

    @pytest.mark.parametrize(
        ("name", "content", "message"),
        [
            ("tokenizer.json", "{", "cannot be used"),
            ("tokenizer.json", "[" * 100_000, "cannot be used"),
            ("tokenizer.json", b"\xff\xfe", "not UTF-8"),
            ("tokenizer_config.json", "nonsense", "not valid JSON"),
            ("tokenizer_config.json", '{"eos_token": "<nope>"}', "not in the vocabulary"),
            ("config.json", '{"eos_token_id": "</s>"}', "it must be token ids"),
            ("generation_config.json", '{"bos_token_id": 1.5}', "it must be token ids"),
            ("tokenizer_config.json", '{"add_bos_token": true}', "no file names the BOS token"),
        ],
    )
    def test_broken_files_are_refused(
        self, tmp_path: Path, name: str, content: str | bytes, message: str
    ) -> None:
        _folder(tmp_path)
        (tmp_path / name).write_bytes(content.encode() if isinstance(content, str) else content)
        with pytest.raises(ModelFileError, match=message) as refusal:
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)
        assert str(tmp_path) not in str(refusal.value)

    @pytest.mark.parametrize(
        "pattern", ["(a+)+b", "(q|qq)+x", r"(\w+\s?)+$", "a*a*a*a*b", "(.+)+é", "(é+)+中"]
    )
    @pytest.mark.parametrize("place", ["pre_tokenizer", "normalizer"])
    def test_a_pattern_that_takes_for_ever_is_refused(
        self, tmp_path: Path, pattern: str, place: str, capfd: pytest.CaptureFixture[str]
    ) -> None:
        trained = _train_byte_level()
        if place == "normalizer":
            trained.normalizer = normalizers.Replace(Regex(pattern), "x")
        else:
            trained.pre_tokenizer = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
        trained.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ModelFileError, match="a pattern in it takes too long"):
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)
        capfd.readouterr()  # the library's own words

    @pytest.mark.parametrize("name", sorted(SPLITS))
    def test_patterns_of_well_known_models_are_taken(self, tmp_path: Path, name: str) -> None:
        trained = _train_byte_level()
        steps = [
            pre_tokenizers.Split(Regex(SPLITS[name].pattern), behavior="isolated"),
            trained.pre_tokenizer,
        ]
        trained.pre_tokenizer = pre_tokenizers.Sequence(steps)
        trained.save(str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(TokenizerFiles(folder=tmp_path), 1000).encode("ab", add_special=False)

    def test_a_folder_without_a_tokenizer_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match="no tokenizer"):
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)

    def test_a_decoder_whose_bytes_are_not_known_is_refused(self, tmp_path: Path) -> None:
        trained = _train_sentencepiece()
        trained.decoder = decoders.WordPiece()
        trained.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ModelFileError, match="decoder WordPiece is not"):
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)


def _same_ids(trained: Backend, loaded: Tokenizer) -> None:
    for text in texts(8, 300):
        assert loaded.encode(text, add_special=False) == trained.encode(text, add_special_tokens=False).ids, (
            text
        )
        assert loaded.decode(loaded.encode(text, add_special=False)) == text


def _train_byte_level() -> Backend:
    return Backend.from_str(_trained_byte_level())


@functools.cache
def _trained_byte_level() -> str:
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=700,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend.to_str()


def _byte_level_metadata(trained: Backend) -> dict[str, Any]:
    model = json.loads(trained.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.merges": [" ".join(pair) for pair in model["merges"]],
        "tokenizer.ggml.token_type": [3 if token == "<|endoftext|>" else 1 for token in tokens],
    }


def _train_sentencepiece() -> Backend:
    return Backend.from_str(_trained_sentencepiece())


@functools.cache
def _trained_sentencepiece() -> str:
    """As Llama 2's tokenizer.json is built: marked spaces, no splitting, bytes for unknown characters."""
    special = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256))]
    backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    backend.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    trainer = trainers.BpeTrainer(
        vocab_size=700, special_tokens=special, show_progress=False, limit_alphabet=150
    )
    backend.train_from_iterator(CORPUS, trainer)
    # The trainer marks the byte tokens special as well; the real ones are ordinary tokens.
    state = json.loads(backend.to_str())
    state["added_tokens"] = [token for token in state["added_tokens"] if token["id"] < 3]
    return json.dumps(state)


def _sentencepiece_metadata(trained: Backend) -> dict[str, Any]:
    """Scores as SentencePiece writes them: the negative rank of the merge that makes the token."""
    model = json.loads(trained.to_str())["model"]
    tokens = [token for token, _ in sorted(model["vocab"].items(), key=lambda item: item[1])]
    made = {left + right: -float(rank) for rank, (left, right) in reversed(list(enumerate(model["merges"])))}
    kinds = {"<unk>": 2, "<s>": 3, "</s>": 3}
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": [made.get(token, -1e6) for token in tokens],
        "tokenizer.ggml.token_type": [6 if 3 <= i < 259 else kinds.get(t, 1) for i, t in enumerate(tokens)],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
    }


def _load(metadata: dict[str, Any], trained: Backend) -> Tokenizer:
    return load_tokenizer(TokenizerFiles(gguf=metadata), trained.get_vocab_size())


@functools.cache
def _byte_level() -> Tokenizer:
    trained = _train_byte_level()
    return _load(_byte_level_metadata(trained), trained)


@functools.cache
def _sentencepiece() -> Tokenizer:
    trained = _train_sentencepiece()
    return _load(_sentencepiece_metadata(trained), trained)


def _folder(folder: Path, *, post_processor: bool = False, **configs: object) -> Tokenizer:
    """A saved tokenizer with <s> 1, </s> 2, <a> 3 and <b> 4, and the given JSON files beside it."""
    backend = Backend(models.BPE({"<unk>": 0}, [], unk_token="<unk>"))
    backend.add_special_tokens([AddedToken(name) for name in ("<s>", "</s>", "<a>", "<b>")])
    backend.add_tokens(["a"])
    backend.decoder = decoders.ByteLevel()
    if post_processor:
        backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    backend.save(str(folder / "tokenizer.json"))
    for name, value in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(value), "utf-8")
    return load_tokenizer(TokenizerFiles(folder=folder), 1000)
