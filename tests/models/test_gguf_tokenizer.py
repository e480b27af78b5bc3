"""Tokenizers of GGUF files: ids equal to the rule and to transformers, a clear refusal of what cannot work."""

from __future__ import annotations

import random
import unicodedata
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken
from tokenizers import Tokenizer as Backend

from support.small_tokenizers import (
    END,
    add_tokens,
    byte_level,
    byte_level_metadata,
    gemma_metadata,
    sentencepiece,
    sentencepiece_ids,
    sentencepiece_metadata,
    write_gguf,
)
from support.texts import PIECES, RUNS, SPELLED, texts
from tokenmill.core.errors import ModelFileError
from tokenmill.models import gguf_tokenizer, gguf_vocabulary
from tokenmill.models.data_file import DataFile
from tokenmill.models.gguf import read_header
from tokenmill.models.gguf_splits import SPLITS
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer
from tokenmill.models.tokenizer_files import TokenizerFiles

TURN = ("<start_of_turn>", "<end_of_turn>", "</b>")
MIXED = [*texts(21, 2000, PIECES + SPELLED), *RUNS]


class TestByteLevel:
    """GGUF metadata made from a trained byte-level tokenizer gives that tokenizer back."""

    def test_ids_and_text_equal_the_trained_tokenizer(self) -> None:
        trained = byte_level()
        _same_ids(trained, _load(byte_level_metadata(trained), trained))

    @pytest.mark.parametrize("pre", sorted({id(split): pre for pre, split in SPLITS.items()}.values()))
    def test_bytes_of_the_tokens_are_those_of_the_text(self, pre: str) -> None:
        trained = byte_level()
        loaded = _load(byte_level_metadata(trained) | {"tokenizer.ggml.pre": pre}, trained)
        for text in [*texts(6, 300), *RUNS]:
            expected = unicodedata.normalize("NFC", text) if SPLITS[pre].nfc else text
            ids = loaded.encode(text, add_special=False)
            assert b"".join(map(loaded.token_bytes, ids)) == expected.encode(), text
            assert loaded.decode(ids) == expected

    @pytest.mark.parametrize("pre", ["gpt-2", "llama-bpe", "qwen2", "qwen35", "tekken", "gpt-4o"])
    def test_a_file_reads_as_with_transformers(self, pre: str, tmp_path: Path) -> None:
        metadata = byte_level_metadata(byte_level()) | {
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.bos_token_id": 0,
            "tokenizer.ggml.eos_token_id": 0,
            "tokenizer.ggml.add_bos_token": False,
        }
        add_tokens(metadata, {"<think>": 4, "</think>": 4, "<|im_start|>": 3})
        loaded, reference = _both(tmp_path, metadata)
        reference.backend_tokenizer.model.ignore_merges = SPLITS[pre].whole_words  # no GGUF reader sets it
        for text in MIXED:
            # Transformers' reader leaves out the normal form of the model's own tokenizer.
            given = unicodedata.normalize("NFC", text) if SPLITS[pre].nfc else text
            ids = loaded.encode(text, add_special=False)
            assert ids == reference.encode(given, add_special_tokens=False), text
            assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True)
            assert loaded.decode(ids, skip_special=False) == reference.decode(ids)

    def test_a_word_that_is_a_token_is_taken_whole_where_the_model_says_so(self) -> None:
        metadata = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.tokens": ["a", "b", "c", "ab", "bc", "abc"],
            "tokenizer.ggml.merges": ["b c", "a b"],  # merging alone gives a + bc and never abc
        }
        ids = {
            pre: _of(metadata | {"tokenizer.ggml.pre": pre}).encode("abc", add_special=False)
            for pre in ("gpt-2", "llama-bpe")
        }
        assert ids == {"gpt-2": [0, 4], "llama-bpe": [5]}

    def test_bos_and_eos_are_added_where_the_file_or_the_kind_says_so(self) -> None:
        trained = byte_level()
        ids = {"tokenizer.ggml.bos_token_id": 0, "tokenizer.ggml.eos_token_id": 5}
        plain = _load(byte_level_metadata(trained), trained).encode("a", add_special=False)
        llama, bos, eos = ("tokenizer.ggml." + key for key in ("pre", "add_bos_token", "add_eos_token"))
        for extra, expected in (
            ({}, plain),
            ({bos: True}, [0, *plain]),
            ({llama: "llama-bpe"}, [0, *plain]),
            ({llama: "llama-bpe", bos: False}, plain),
            ({eos: True}, [*plain, 5]),
            ({bos: True, eos: True}, [0, *plain, 5]),
        ):
            loaded = _load(byte_level_metadata(trained) | ids | extra, trained)
            assert loaded.encode("a", add_special=True) == expected
            assert loaded.encode("a", add_special=False) == plain
            assert loaded.add_bos is (expected[0] == 0)

    def test_user_defined_tokens_are_matched_whole_and_keep_their_text(self) -> None:
        metadata = byte_level_metadata(byte_level())
        add_tokens(metadata, {"<think it>": 4})
        loaded = _of(metadata)
        number = loaded.vocab_size - 1
        assert number in loaded.encode("a<think it>b", add_special=False)
        assert loaded.token_bytes(number) == b"<think it>"
        assert loaded.special_tokens == {END: 0, "<think it>": number}


class TestSentencePiece:
    def test_ids_and_text_equal_the_trained_tokenizer(self) -> None:
        trained = sentencepiece()
        _same_ids(trained, _load(sentencepiece_metadata(trained), trained))

    @pytest.mark.parametrize("make", [lambda: sentencepiece_metadata(sentencepiece()), gemma_metadata])
    def test_ids_equal_sentencepiece_written_down_plainly(self, make: Callable[[], dict[str, Any]]) -> None:
        metadata = make()
        loaded = _of(metadata)
        for text in texts(7, 2000):
            ids = loaded.encode(text, add_special=False)
            assert ids == sentencepiece_ids(metadata, text), text
            assert loaded.decode(ids) == text

    def test_ids_equal_transformers(self) -> None:
        # transformers' class takes a text's own first space for the mark SentencePiece puts before it, so the
        # texts here begin with a letter; it merges by the same scores.
        from transformers import LlamaTokenizer
        from transformers.tokenization_utils_base import generate_merges

        trained = sentencepiece()
        metadata = sentencepiece_metadata(trained)
        tokens, scores = metadata["tokenizer.ggml.tokens"], metadata["tokenizer.ggml.scores"]
        vocab = {token: number for number, token in enumerate(tokens)}
        merges = generate_merges(vocab, dict(zip(tokens, scores, strict=True)))
        reference = LlamaTokenizer(vocab=vocab, merges=merges, add_bos_token=False)
        loaded = _load(metadata, trained)
        for text in texts(7, 2000):
            text = "x" + text
            ids = loaded.encode(text, add_special=False)
            assert ids == reference.encode(text, add_special_tokens=False), text
            assert loaded.decode(ids) == reference.decode(ids)

    def test_a_gemma_file_reads_as_with_transformers(self, tmp_path: Path) -> None:
        # Where several spaces or marks stand together transformers joins them like letters, not longest first.
        loaded, reference = _both(tmp_path, gemma_metadata(), architecture="gemma2")
        pieces = tuple(piece for piece in PIECES + SPELLED if piece.strip(" ") and "  " not in piece)
        for text in texts(23, 2000, pieces):
            if "  " in text:
                continue
            ids = loaded.encode(text, add_special=True)
            assert ids == reference.encode(text), text
            assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True)

    def test_gemmas_tokens_of_spaces_and_lines_are_taken_longest_first(self) -> None:
        loaded = _of(gemma_metadata())
        ids = loaded.encode("a" + " " * 9 + "b" + "\n" * 8, add_special=False)
        assert [loaded.token_bytes(i) for i in ids] == [b"a", b" " * 7, b"  ", b"b", b"\n" * 7, b"\n"]

    def test_tokens_of_spaces_may_be_spelled_with_marks(self) -> None:
        metadata = gemma_metadata()
        plain = _of(metadata)
        tokens = metadata["tokenizer.ggml.tokens"]
        metadata["tokenizer.ggml.tokens"] = ["▁" * len(t) if t.strip(" ") == "" else t for t in tokens]
        marked = _of(metadata)
        for text in texts(24, 200):
            assert marked.encode(text, add_special=False) == plain.encode(text, add_special=False)

    def test_phi_3_swallows_white_space_after_its_own_tokens(self) -> None:
        metadata = sentencepiece_metadata(sentencepiece()) | {"general.architecture": "phi3"}
        add_tokens(metadata, {"<|user|>": 3, "<|end|>": 3, "<|endoftext|>": 3})
        text = "<|user|>\n the<|end|> \n\n<|endoftext|> the<s> the"
        tokens, oracle = metadata["tokenizer.ggml.tokens"], sentencepiece()
        oracle.add_special_tokens(
            [
                AddedToken("<|user|>", normalized=False, rstrip=True),
                AddedToken("<|end|>", normalized=False, rstrip=True),
                AddedToken("<|endoftext|>", normalized=False),
            ]
        )
        ids = _of(metadata).encode(text, add_special=False)
        assert ids == oracle.encode(text, add_special_tokens=False).ids
        found = [tokens[number] for number in ids]
        assert found[:4] == ["<|user|>", "▁the", "<|end|>", "<|endoftext|>"]
        assert found[4] != "▁the"  # <|endoftext|> keeps the space, and SentencePiece adds one
        other = _of(metadata | {"general.architecture": "llama"})
        assert other.encode(text, add_special=False) != ids

    def test_unknown_characters_fall_back_to_bytes(self) -> None:
        loaded = _of(sentencepiece_metadata(sentencepiece()))
        ids = loaded.encode("𓀀", add_special=False)
        assert b"".join(map(loaded.token_bytes, ids)) == " 𓀀".encode()
        assert loaded.decode(ids) == "𓀀"

    def test_the_first_space_is_stripped_once(self) -> None:
        loaded = _of(sentencepiece_metadata(sentencepiece()))
        assert loaded.first_token_strips_space
        assert loaded.decode(loaded.encode("  two", add_special=False)) == "  two"

    def test_without_the_space_prefix_nothing_is_added_or_stripped(self) -> None:
        metadata = sentencepiece_metadata(sentencepiece()) | {"tokenizer.ggml.add_space_prefix": False}
        loaded = _of(metadata)
        assert not loaded.first_token_strips_space
        ids = loaded.encode("the", add_special=False)
        assert b"".join(map(loaded.token_bytes, ids)) == b"the"

    def test_extra_spaces_are_removed_where_the_file_says_so(self) -> None:
        metadata = sentencepiece_metadata(sentencepiece())
        loaded = _of(metadata | {"tokenizer.ggml.remove_extra_whitespaces": True})
        for text in texts(25, 500):
            # Spaces alone; other white space stays.
            fewer = " ".join(word for word in text.split(" ") if word)
            if fewer:
                assert loaded.encode(text, add_special=False) == sentencepiece_ids(metadata, fewer), text

    def test_bos_is_added_by_default(self) -> None:
        loaded = _of(sentencepiece_metadata(sentencepiece()))
        assert loaded.add_bos
        assert loaded.encode("a", add_special=True)[0] == loaded.bos_id == 1


Change = Callable[[dict[str, Any]], object]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        *(
            (
                lambda m, kind=kind: m.update({"tokenizer.ggml.model": kind}),
                f"'{kind}'; known are gpt2 and llama",
            )
            for kind in ("t5", "gemma4", "bert", "rwkv", "plamo2", "")
        ),
        (lambda m: m.pop("tokenizer.ggml.model"), "known are gpt2 and llama"),
        (lambda m: m.update({"tokenizer.ggml.pre": "klingon"}), "'klingon'; known are a.x-4.0, bailingmoe"),
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
        (lambda m: m.update({"tokenizer.ggml.add_eos_token": True}), "no tokenizer.ggml.eos_token_id"),
        (lambda m: m.update({"tokenizer.ggml.add_eos_token": "no"}), "must be true or false"),
    ],
)
def test_metadata_that_cannot_work_is_refused(change: Change, message: str) -> None:
    metadata = byte_level_metadata(byte_level())
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
            "tokenizer.ggml.pre": rng.choice(sorted(SPLITS)),
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


@pytest.mark.parametrize("kind", [1, 4, 3])
def test_marks_of_turns_are_matched_and_never_printed_whatever_their_type(kind: int) -> None:
    metadata = gemma_metadata()
    add_tokens(metadata, {"<start_of_turn>": kind, "<end_of_turn>": kind, "</b>": 4})
    loaded = _of(metadata)
    start, end, tag = (metadata["tokenizer.ggml.tokens"].index(t) for t in TURN)
    ids = loaded.encode("<start_of_turn>a</b><end_of_turn>", add_special=False)
    assert (ids[0], ids[-2:]) == (start, [tag, end])
    assert end in loaded.eos_ids
    assert loaded.decode(ids) == "a</b>"


def test_more_merges_than_any_model_has_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    tokens = ["a" * i + "b" * j for i in range(12) for j in range(12) if i + j]
    many = {"tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.0] * len(tokens)}
    sums = {"tokenizer.ggml.model": "llama"} | many
    listed = {"tokenizer.ggml.model": "gpt2", "tokenizer.ggml.merges": ["a b"] * 1001} | many
    for metadata in (sums, listed):
        _of(metadata)
    for module in (gguf_tokenizer, gguf_vocabulary):
        monkeypatch.setattr(module, "MAX_MERGES", 1000)
    with pytest.raises(ModelFileError, match="can be joined in more than 1000 ways"):
        _of(sums)
    with pytest.raises(ModelFileError, match="merges has 1001 entries; at most 1000"):
        _of(listed)
    monkeypatch.setattr(gguf_tokenizer, "MAX_LETTERS", 1000)
    with pytest.raises(ModelFileError, match="have 1584 letters; at most 1000"):
        _of(sums)


def test_ends_are_read_as_the_models_configuration_reads_them() -> None:
    metadata = sentencepiece_metadata(sentencepiece())
    metadata |= {"tokenizer.ggml.eos_token_id": -1, "tokenizer.ggml.eot_token_id": [7, 2]}
    assert load_tokenizer(TokenizerFiles(gguf=metadata), 1000).eos_ids[:2] == (7, 2)


def _both(folder: Path, metadata: dict[str, Any], architecture: str = "llama") -> tuple[Tokenizer, Any]:
    """One file, read here and by transformers."""
    from transformers import AutoTokenizer

    path = folder / "model.gguf"
    write_gguf(path, metadata, architecture)
    file = DataFile(path)
    try:
        return _of(dict(read_header(file).metadata)), AutoTokenizer.from_pretrained(
            folder, gguf_file=path.name
        )
    finally:
        file.close()


def _of(metadata: dict[str, Any]) -> Tokenizer:
    return load_tokenizer(TokenizerFiles(gguf=metadata), len(metadata["tokenizer.ggml.tokens"]))


def _load(metadata: dict[str, Any], trained: Backend) -> Tokenizer:
    return load_tokenizer(TokenizerFiles(gguf=metadata), trained.get_vocab_size())


def _same_ids(trained: Backend, loaded: Tokenizer) -> None:
    for text in MIXED:
        ids = loaded.encode(text, add_special=False)
        assert ids == trained.encode(text, add_special_tokens=False).ids, text
        for skip in (True, False):
            assert loaded.decode(ids, skip_special=skip) == trained.decode(ids, skip_special_tokens=skip), (
                text
            )
