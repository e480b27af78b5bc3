"""A folder with only tokenizer.model: the same tokenizer as a GGUF file of the same pieces."""

from __future__ import annotations

import json
import random
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.small_tokenizers import (
    declared,
    gemma_metadata,
    sentencepiece,
    sentencepiece_ids,
    sentencepiece_metadata,
)
from support.texts import texts
from tokenmill.core.errors import ModelFileError
from tokenmill.models.sentencepiece_file import read_pieces
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer
from tokenmill.models.tokenizer_files import TokenizerFiles


def _varint(number: int) -> bytes:
    number &= (1 << 64) - 1
    out = bytearray()
    while number >= 0x80:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _field(number: int, value: float | bytes | str) -> bytes:
    """A field of a protobuf message: integers as varints, floats as four bytes, the rest with its length."""
    if isinstance(value, float):
        return _varint(number << 3 | 5) + struct.pack("<f", value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    raw = value.encode() if isinstance(value, str) else value
    return _varint(number << 3 | 2) + _varint(len(raw)) + raw


def _model(
    metadata: Mapping[str, Any],
    *,
    trainer: Mapping[int, float | bytes | str] | None = None,
    normalizer: Mapping[int, float | bytes | str] | None = None,
) -> bytes:
    """The pieces of `metadata` as SentencePiece stores them; the type of normal ones is left out."""
    data = b""
    kinds, scores = metadata["tokenizer.ggml.token_type"], metadata["tokenizer.ggml.scores"]
    for token, kind, score in zip(metadata["tokenizer.ggml.tokens"], kinds, scores, strict=True):
        kept = [(1, token.replace(" ", "▁") if kind == 4 else token), (2, float(score))]
        kept += [(3, kind)] if kind != 1 else []
        data += _field(1, b"".join(_field(*pair) for pair in kept))
    # Beside the settings that are read stand some that are not, of every wire type.
    settings = {
        3: 2,
        4: 32000,
        10: 0.9995,
        35: 1,
        40: 0,
        41: 1,
        42: 2,
        43: -1,
        44: "<unk>",
        **(trainer or {}),
    }
    rules = {
        1: "identity",
        3: int(metadata.get("tokenizer.ggml.add_space_prefix", True)),
        4: 0,
        **(normalizer or {}),
    }
    data += _field(2, b"".join(_field(*pair) for pair in settings.items()))
    data += _field(3, b"".join(_field(*pair) for pair in rules.items()))
    return data + _varint(9 << 3 | 1) + bytes(8)


def _folder(folder: Path, data: bytes, **configs: object) -> Tokenizer:
    (folder / "tokenizer.model").write_bytes(data)
    for name, value in configs.items():
        (folder / f"{name}.json").write_text(json.dumps(value), "utf-8")
    return load_tokenizer(TokenizerFiles(folder=folder), 2000)


def _llama() -> dict[str, Any]:
    return sentencepiece_metadata(sentencepiece())


@pytest.mark.parametrize("make", [_llama, gemma_metadata])
def test_ids_equal_those_of_the_same_pieces_in_a_gguf_file(
    tmp_path: Path, make: Callable[[], dict[str, Any]]
) -> None:
    metadata = make()
    loaded = _folder(tmp_path, _model(metadata))
    other = load_tokenizer(TokenizerFiles(gguf=metadata), 2000)
    for text in texts(41, 500):
        ids = loaded.encode(text, add_special=True)
        assert ids == other.encode(text, add_special=True) == [1, *sentencepiece_ids(metadata, text)], text
        assert loaded.decode(ids) == text
    assert (loaded.bos_id, loaded.eos_ids[0]) == (1, 2)


def test_settings_that_are_not_stored_have_sentencepieces_defaults() -> None:
    bare = _field(1, _field(1, "a")) + _field(2, _field(3, 2))
    assert read_pieces(bare) == {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": ["a"],
        "tokenizer.ggml.scores": [0.0],
        "tokenizer.ggml.token_type": [1],
        "tokenizer.ggml.bos_token_id": 1,
        "tokenizer.ggml.eos_token_id": 2,
        "tokenizer.ggml.add_space_prefix": True,
        "tokenizer.ggml.remove_extra_whitespaces": True,
    }


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ({}, (True, False)),
        ({"add_bos_token": False}, (False, False)),
        ({"add_bos_token": True, "add_eos_token": True}, (True, True)),
        ({"add_bos_token": None}, (True, False)),
    ],
)
def test_the_configuration_says_what_is_put_around_a_text(
    tmp_path: Path, flags: dict[str, Any], expected: tuple[bool, bool]
) -> None:
    loaded = _folder(tmp_path, _model(_llama()), tokenizer_config=flags)
    ids = loaded.encode("a", add_special=True)
    assert (ids[0] == 1, ids[-1] == 2) == expected


def test_a_model_without_bos_adds_none(tmp_path: Path) -> None:
    loaded = _folder(tmp_path, _model(_llama(), trainer={41: -1}))
    assert loaded.bos_id is None
    assert not loaded.add_bos


def test_files_beside_it_name_ends_and_further_tokens(tmp_path: Path) -> None:
    metadata = _llama()
    number = len(metadata["tokenizer.ggml.tokens"])
    loaded = _folder(
        tmp_path,
        _model(metadata),
        tokenizer_config={"added_tokens_decoder": {str(number): declared("<|im_end|>")}},
        generation_config={"eos_token_id": [number, 2]},
    )
    assert loaded.eos_ids == (number, 2)
    assert loaded.special_tokens["<|im_end|>"] == number


def test_tokenizer_json_comes_first(tmp_path: Path) -> None:
    sentencepiece().save(str(tmp_path / "tokenizer.json"))
    assert not _folder(tmp_path, b"nonsense").add_bos


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (lambda m: _model(m, trainer={3: 1}), "not BPE"),
        (lambda m: b"", "not BPE"),
        (lambda m: _model(m, normalizer={2: b"map"}), "maps characters"),
        (lambda m: _model(m)[:-1], "not a SentencePiece model"),
        (lambda m: b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\xff\x7f", "not a SentencePiece model"),
        (lambda m: b"\x0a" + b"\x80" * 20, "not a SentencePiece model"),
        (lambda m: _field(1, 7), "not a SentencePiece model"),
        (lambda m: _field(1, _field(1, 7)), "not a SentencePiece model"),
        (lambda m: _field(1, _field(1, b"\xff")), "not a SentencePiece model"),
        (lambda m: _field(1, _field(2, "x")), "not a SentencePiece model"),
        (lambda m: _field(1, _field(3, "x")), "not a SentencePiece model"),
        (lambda m: b"\x0b\x0c", "not a SentencePiece model"),
        (lambda m: _model(m, trainer={41: 99999}), "bos_token_id is 99999"),
        (lambda m: _field(2, _field(3, 2)), "must be a list of strings"),
    ],
)
def test_others_are_refused(tmp_path: Path, data: Callable[[dict[str, Any]], bytes], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        _folder(tmp_path, data(_llama()))


def test_a_file_too_large_is_not_read(tmp_path: Path) -> None:
    with (tmp_path / "tokenizer.model").open("wb") as file:
        file.truncate((32 << 20) + 1)
    with pytest.raises(ModelFileError, match=r"tokenizer\.model has 33554433 bytes"):
        load_tokenizer(TokenizerFiles(folder=tmp_path), 100)


def test_damaged_files_give_a_tokenizer_or_a_refusal(tmp_path: Path) -> None:
    rng = random.Random(43)
    whole = _model(_llama())
    head = len(whole) - 200
    outcomes = set()
    for _ in range(300):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.choice([rng.randrange(len(data)), rng.randrange(head, len(data))])] = rng.randrange(256)
        try:
            loaded = _folder(tmp_path, bytes(data[: rng.choice([len(data), rng.randrange(len(data))])]))
        except ModelFileError:
            outcomes.add("refused")
        else:
            outcomes.add(type(loaded.decode(loaded.encode("ab é<s>", add_special=True))).__name__)
    assert outcomes == {"refused", "str"}
