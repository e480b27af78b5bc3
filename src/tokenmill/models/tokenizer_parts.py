"""What every source of a tokenizer is reduced to, and how its tokens become bytes."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import tokenizers

from tokenmill.core.errors import ModelFileError, TokenmillError


@dataclass(frozen=True)
class TokenizerParts:
    """A tokenizer as read from a file.

    Attributes:
        backend: encodes text; its decoder says how tokens become text.
        bos_id: the token that begins a text, when the model has one.
        eos_ids: every token that ends a text, the model's own EOS first.
        prefix: tokens put before an encoded text that asks for special tokens; usually BOS or nothing.
        suffix: tokens put after it; nearly always nothing.
    """

    backend: tokenizers.Tokenizer
    bos_id: int | None
    eos_ids: tuple[int, ...]
    prefix: tuple[int, ...]
    suffix: tuple[int, ...] = ()


@contextmanager
def no_panic(message: str, error_type: type[TokenmillError]) -> Iterator[None]:
    """Turns a panic of the tokenizer library into an ordinary error.

    A panic arrives as a BaseException of a class that cannot be imported; hostile files provoke it.
    """
    try:
        yield
    except BaseException as error:
        if type(error).__name__ != "PanicException":
            raise
        raise error_type(message) from None


# SentencePiece's mark for a space.
MARK = "\u2581"
_STRIP_FIRST_SPACE = {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def byte_alphabet() -> dict[int, str]:
    """Byte -> the printable character byte-level BPE writes for it (GPT-2, `bytes_to_unicode`).

    Printable Latin-1 stands for itself; the other bytes, in order, are U+0100 and up.
    """
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    alphabet = {byte: chr(byte) for byte in printable}
    return alphabet | {byte: chr(0x100 + number) for number, byte in enumerate(others)}


# Character -> the character whose Latin-1 code is the byte. What is no letter of the alphabet but has a
# Latin-1 code of its own (space, newline, ...) goes to U+FFFF, so that encoding to Latin-1 fails on it.
_TO_LATIN1: dict[int, int] = dict.fromkeys(range(256), 0xFFFF) | {
    ord(char): byte for byte, char in byte_alphabet().items()
}


def _byte_level(token: str) -> bytes:
    try:
        return token.translate(_TO_LATIN1).encode("latin-1")
    except UnicodeEncodeError:  # an added token written as plain text
        return token.encode("utf-8")


def _sentencepiece(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        try:
            return bytes([int(token[3:5], 16)])
        except ValueError:
            pass
    return token.replace(MARK, " ").encode("utf-8")


def token_bytes_table(backend: tokenizers.Tokenizer, vocab_size: int) -> tuple[list[bytes], bool]:
    """Token id -> the bytes it adds to a text, and whether a text's first space is dropped.

    Special tokens and ids without a token are `b""`. Only decoders that map every token to bytes on its
    own are known: byte-level, and SentencePiece style (space mark, byte fallback).

    Raises:
        ModelFileError: another kind of decoder.
    """
    to_bytes, strips = _decoder_kind(backend)
    table = [b""] * vocab_size
    added = backend.get_added_tokens_decoder()
    for token, number in backend.get_vocab(with_added_tokens=True).items():
        if number >= vocab_size or (number in added and added[number].special):
            continue
        # An added token that is matched in normalized text is written in that text's normal form.
        table[number] = to_bytes((backend.id_to_token(number) or token) if number in added else token)
    return table, strips


def shortening(backend: tokenizers.Tokenizer) -> int:
    """How many times longer than what is cut into tokens a text can be, in bytes of UTF-8.

    Composing takes at most three bytes for one: three letters of Hangul are one syllable, each of them three
    bytes (Unicode Standard Annex 15, expansion factor of NFD in UTF-8).
    """
    normalizer = "" if backend.normalizer is None else backend.normalizer.__getstate__().decode()
    return 3 if '"NFC"' in normalizer or '"NFKC"' in normalizer else 1


def _decoder_kind(backend: tokenizers.Tokenizer) -> tuple[Callable[[str], bytes], bool]:
    decoder: Any = json.loads(backend.decoder.__getstate__()) if backend.decoder is not None else {}
    steps = decoder["decoders"] if decoder.get("type") == "Sequence" else [decoder]
    kinds = [step.get("type", "none") for step in steps]
    if kinds == ["ByteLevel"]:
        return _byte_level, False
    if kinds == ["Metaspace"] and steps[0]["replacement"] == MARK:
        return _sentencepiece, steps[0].get("prepend_scheme") != "never"
    if steps[0] == {"type": "Replace", "pattern": {"String": MARK}, "content": " "}:
        if kinds[1:] == ["ByteFallback", "Fuse"]:
            return _sentencepiece, False
        if kinds[1:] == ["ByteFallback", "Fuse", "Strip"] and steps[-1] == _STRIP_FIRST_SPACE:
            return _sentencepiece, True
    raise ModelFileError(
        f"the tokenizer's decoder {'+'.join(kinds)} is not supported; known are byte-level decoders and "
        "SentencePiece-style ones"
    )
