"""Pieces of grammars in llguidance's dialect of Lark."""

from __future__ import annotations

import json
from collections.abc import Mapping


def quoted(text: str) -> str:
    """The text as a literal. Raw control characters would be errors: all but printable ASCII is escaped."""
    return json.dumps(text)


def mark(text: str, special_tokens: Mapping[str, int]) -> str:
    """A mark as its token, where the tokenizer has one, or written in pieces."""
    token = special_tokens.get(text)
    return quoted(text) if token is None else f"(<[{token}]> | {quoted(text)})"


def free_until(name: str, text: str, ending: str, special_tokens: Mapping[str, int]) -> list[str]:
    """The rules of `name`: free text, the terminal `text`, up to and with the first mark `ending`."""
    token = special_tokens.get(ending)
    if token is None:
        return [f"{name}[lazy]: {text} {quoted(ending)}"]
    return [f"{name}: {text} <[{token}]> | {name}_text", f"{name}_text[lazy]: {text} {quoted(ending)}"]
