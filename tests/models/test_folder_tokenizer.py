"""Tokenizers of folders: equal to transformers on the same folder, a clear refusal of what cannot work."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from support.small_tokenizers import CORPUS, added, byte_level, declared, sentencepiece
from support.texts import PIECES, RUNS, SPELLED, texts
from tokenmill.core.errors import ModelFileError
from tokenmill.models import folder_tokenizer
from tokenmill.models.gguf_splits import SPLITS
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer
from tokenmill.models.tokenizer_files import TokenizerFiles


def _unigram() -> Backend:
    """As T5-like tokenizers are built: the likeliest cut, spaces marked, unknown letters as bytes."""
    backend = Backend(models.Unigram())
    backend.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace(Regex(" {2,}"), " ")])
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=500, special_tokens=["<unk>", "<s>", "</s>"], unk_token="<unk>", show_progress=False
    )
    backend.train_from_iterator(CORPUS, trainer)
    return backend


def _mistral() -> Backend:
    """The space goes before a text only, not after special tokens."""
    backend = sentencepiece()
    backend.normalizer = None
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
    backend.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    return backend


def _gemma() -> Backend:
    backend = sentencepiece()
    backend.normalizer = normalizers.Replace(" ", "▁")
    backend.pre_tokenizer = pre_tokenizers.Split(" ", behavior="merged_with_previous")
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]
    )
    backend.add_special_tokens([added("<start_of_turn>"), added("<end_of_turn>")])
    return backend


def _qwen() -> Backend:
    backend = byte_level()
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = SPLITS["qwen2"].pre_tokenizer()
    backend.add_special_tokens([added("<|im_start|>"), added("<|im_end|>")])
    backend.add_tokens([added("<think>"), added("</think>")])
    return backend


def _flags() -> Backend:
    """Added tokens of every kind."""
    backend = byte_level()
    backend.add_special_tokens([added("<|im_start|>", lstrip=True), added("</s>", rstrip=True)])
    backend.add_tokens(
        [
            added("the", single_word=True),
            added("café", normalized=True),
            added("<think>", lstrip=True, rstrip=True),
            added("0x1F"),
        ]
    )
    backend.normalizer = normalizers.NFD()
    return backend


FAMILIES = {
    "llama2": sentencepiece,
    "mistral": _mistral,
    "gemma": _gemma,
    "qwen": _qwen,
    "gpt2": byte_level,
    "unigram": _unigram,
    "flags": _flags,
}


@pytest.mark.parametrize("family", FAMILIES)
def test_ids_and_text_equal_transformers(tmp_path: Path, family: str) -> None:
    FAMILIES[family]().save(str(tmp_path / "tokenizer.json"))
    loaded, reference = _both(tmp_path)
    for text in [*texts(31, 2000, PIECES + SPELLED), *RUNS]:
        ids = loaded.encode(text, add_special=True)
        assert ids == reference.encode(text), text
        for skip in (True, False):
            expected = reference.decode(ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False)
            assert loaded.decode(ids, skip_special=skip) == expected, text


class TestDeclaredTokens:
    """`added_tokens_decoder` of tokenizer_config.json."""

    @pytest.mark.parametrize(
        "tokens",
        [
            {"700": declared("<x>")},
            {
                "701": declared("<x>"),
                "700": declared("<y>", special=False),
                "702": declared("<z>", rstrip=True),
            },
            {"0": declared("<|endoftext|>", rstrip=True, lstrip=True)},
            {"0": declared("<|endoftext|>"), "260": declared("the", single_word=True, special=False)},
            {"700": declared("<eos>", special=False)},
        ],
    )
    def test_they_are_added_as_transformers_adds_them(
        self, tmp_path: Path, tokens: dict[str, dict[str, Any]]
    ) -> None:
        backend = byte_level()
        tokens = {str(backend.token_to_id(t["content"]) or key): t for key, t in tokens.items()}
        backend.save(str(tmp_path / "tokenizer.json"))
        end = "<eos>" if any(token["content"] == "<eos>" for token in tokens.values()) else "<|endoftext|>"
        loaded, reference = _both(tmp_path, {"added_tokens_decoder": tokens, "eos_token": end})
        pieces = (" ", "the", "then ", "\n", "<x>", "<y>", "<z>", "<eos>", "<|endoftext|>")
        for text in texts(32, 500, pieces):
            ids = loaded.encode(text, add_special=True)
            assert ids == reference.encode(text), text
            assert loaded.decode(ids) == reference.decode(ids, skip_special_tokens=True)
        assert loaded.special_tokens == reference.get_added_vocab()

    @pytest.mark.parametrize(
        ("tokens", "message"),
        [
            ({"9": declared("<x>")}, "'<x>' the id 9; the next free one is 6"),
            ({"5": {"lstrip": True}}, "malformed entry '5'"),
            ({"5": "<x>"}, "malformed entry '5'"),
            ({"x": declared("<x>")}, "malformed entry 'x'"),
            ({"5": declared("<x>") | {"rstrip": 1}}, "rstrip of '<x>' must be true or false, not 1"),
            (["<x>"], "must be an object"),
        ],
    )
    def test_others_are_refused(self, tmp_path: Path, tokens: object, message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            _folder(tmp_path, tokenizer_config={"added_tokens_decoder": tokens})


class TestFolder:
    def test_truncation_and_padding_of_the_file_do_not_apply(self, tmp_path: Path) -> None:
        trained = byte_level()
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

    @pytest.mark.parametrize("flags", [{}, {"add_bos_token": True}, {"add_bos_token": False}])
    @pytest.mark.parametrize("template", [None, "$A", "<s> $A", "$A </s>", "<s> $A </s>"])
    def test_only_the_post_processor_says_what_is_put_around_a_text(
        self, tmp_path: Path, template: str | None, flags: dict[str, bool]
    ) -> None:
        backend = sentencepiece()
        if template:
            specials = [(name, backend.token_to_id(name)) for name in ("<s>", "</s>")]
            backend.post_processor = processors.TemplateProcessing(single=template, special_tokens=specials)
        backend.save(str(tmp_path / "tokenizer.json"))
        loaded, reference = _both(tmp_path, {"bos_token": "<s>", "eos_token": "</s>", **flags})
        for text in ("a", "", " the"):
            assert loaded.encode(text, add_special=True) == reference.encode(text)
        assert loaded.add_bos is (template or "").startswith("<s>")

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

    def test_a_bos_outside_the_vocabulary_is_none(self, tmp_path: Path) -> None:
        loaded = _folder(tmp_path, tokenizer_config={"bos_token": "<nope>", "eos_token": "</s>"})
        assert (loaded.bos_id, loaded.bos_token, loaded.eos_ids) == (None, "", (2,))
        loaded = _folder(tmp_path, tokenizer_config={"bos_token": "<nope>"}, config={"bos_token_id": 1})
        assert loaded.bos_id == 1

    def test_more_strings_than_any_tokenizer_has_are_refused(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        _folder(tmp_path)
        monkeypatch.setattr(folder_tokenizer, "MAX_STRINGS", 20)
        with pytest.raises(ModelFileError, match=r"has \d+ strings; at most 20 are allowed"):
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)

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
        trained = byte_level()
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
        trained = byte_level()
        trained.pre_tokenizer = SPLITS[name].pre_tokenizer()
        trained.save(str(tmp_path / "tokenizer.json"))
        assert load_tokenizer(TokenizerFiles(folder=tmp_path), 1000).encode("ab", add_special=False)

    def test_a_folder_without_a_tokenizer_is_refused(self, tmp_path: Path) -> None:
        with pytest.raises(ModelFileError, match=r"no tokenizer\.json and no tokenizer\.model"):
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)

    def test_a_decoder_whose_bytes_are_not_known_is_refused(self, tmp_path: Path) -> None:
        trained = sentencepiece()
        trained.decoder = decoders.WordPiece()
        trained.save(str(tmp_path / "tokenizer.json"))
        with pytest.raises(ModelFileError, match="decoder WordPiece is not"):
            load_tokenizer(TokenizerFiles(folder=tmp_path), 1000)


def _both(folder: Path, config: dict[str, Any] | None = None) -> tuple[Tokenizer, Any]:
    """The folder, read here and by transformers."""
    from transformers import AutoTokenizer

    stored = {"tokenizer_class": "PreTrainedTokenizerFast", **(config or {})}
    (folder / "tokenizer_config.json").write_text(json.dumps(stored), "utf-8")
    return load_tokenizer(TokenizerFiles(folder=folder), 1000), AutoTokenizer.from_pretrained(folder)


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
