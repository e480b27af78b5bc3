"""Reads a SentencePiece `tokenizer.model`: the pieces and the few settings that decide how text is cut.

The file is one protobuf message, ModelProto (`sentencepiece_model.proto`): pieces = 1 (piece = 1, score = 2,
type = 3), trainer_spec = 2 (model_type = 3, bos_id = 41, eos_id = 42), normalizer_spec = 3
(precompiled_charsmap = 2, add_dummy_prefix = 3, remove_extra_whitespaces = 4). Other fields are skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping

from tokenmill.core.errors import ModelFileError

NORMAL, BPE = 1, 2
_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5

Value = int | float | bytes


def read_pieces(data: bytes) -> Mapping[str, object]:
    """The file's contents under the keys a GGUF file has for them: the types of pieces have the same numbers.

    Raises:
        ModelFileError: it is malformed, not BPE, or maps characters before cutting.
    """
    tokens: list[str] = []
    scores: list[float] = []
    types: list[int] = []
    trainer: dict[int, Value] = {}
    normalizer: dict[int, Value] = {}
    for field, value in _fields(data):
        if field == 1:
            piece = dict(_fields(_message(value)))
            tokens.append(_text(piece.get(1, b"")))
            scores.append(_score(piece.get(2, 0.0)))
            types.append(_number(piece.get(3, NORMAL)))
        elif field == 2:
            trainer = dict(_fields(_message(value)))
        elif field == 3:
            normalizer = dict(_fields(_message(value)))
    if trainer.get(3) != BPE:
        raise ModelFileError("tokenizer.model is not BPE, the only kind of SentencePiece model that is read")
    if normalizer.get(2):
        raise ModelFileError("tokenizer.model maps characters before cutting, which is not supported")
    return {
        "tokenizer.ggml.model": "llama",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.scores": scores,
        "tokenizer.ggml.token_type": types,
        "tokenizer.ggml.bos_token_id": _number(trainer.get(41, 1)),
        "tokenizer.ggml.eos_token_id": _number(trainer.get(42, 2)),
        "tokenizer.ggml.add_space_prefix": bool(normalizer.get(3, True)),
        "tokenizer.ggml.remove_extra_whitespaces": bool(normalizer.get(4, True)),
    }


def _fields(data: bytes) -> Iterator[tuple[int, Value]]:
    """(field number, value) of a message, in order; 64-bit numbers nothing here reads are left out."""
    at = 0
    while at < len(data):
        tag, at = _varint(data, at)
        kind = tag & 7
        if kind == _VARINT:
            value, at = _varint(data, at)
            yield tag >> 3, value
            continue
        if kind == _BYTES:
            size, at = _varint(data, at)
        else:
            size = {_FIXED32: 4, _FIXED64: 8}.get(kind, len(data) + 1)
        if size > len(data) - at:
            raise _broken()
        raw = data[at : at + size]
        at += size
        if kind == _FIXED32:
            yield tag >> 3, struct.unpack("<f", raw)[0]
        elif kind == _BYTES:
            yield tag >> 3, raw


def _varint(data: bytes, at: int) -> tuple[int, int]:
    """A number of at most 64 bits, as two's complement, and where it ends."""
    result = 0
    for shift in range(0, 70, 7):
        if at >= len(data):
            break
        byte = data[at]
        at += 1
        result |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (result - (1 << 64) if result >> 63 else result), at
    raise _broken()


def _message(value: Value) -> bytes:
    if not isinstance(value, bytes):
        raise _broken()
    return value


def _text(value: Value) -> str:
    try:
        return _message(value).decode("utf-8")
    except UnicodeDecodeError:
        raise _broken() from None


def _number(value: Value) -> int:
    if not isinstance(value, int):
        raise _broken()
    return value


def _score(value: Value) -> float:
    if not isinstance(value, float):
        raise _broken()
    return value


def _broken() -> ModelFileError:
    return ModelFileError("tokenizer.model is not a SentencePiece model")
