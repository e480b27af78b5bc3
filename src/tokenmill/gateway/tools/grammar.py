"""Grammars that hold a model to well-formed calls, in llguidance's dialect of Lark."""

from __future__ import annotations

import re
from collections.abc import Mapping

from tokenmill.core.bounds import MAX_CALLS
from tokenmill.core.request import Grammar
from tokenmill.gateway.json_schema import Schema, compiled_text
from tokenmill.gateway.lark import free_until, mark
from tokenmill.gateway.tools.declared import Offer, Tool
from tokenmill.gateway.tools.syntax import Syntax

_ANY_OBJECT: Schema = {"type": "object"}
# Schemas of these keywords alone keep their meaning when undeclared arguments are ruled out.
_PLAIN_KEYWORDS = frozenset(
    {"$defs", "$schema", "default", "definitions", "description", "properties", "required", "title", "type"}
)


def call_grammar(
    offer: Offer, syntax: Syntax, special_tokens: Mapping[str, int], content_schema: str | None = None
) -> Grammar:
    """What an answer of this request may be.

    Where a call is required, its arguments follow the schema. Where the model is free to call, text is free
    up to the marker that begins calls; from there on names are those of tools and arguments are JSON objects,
    which follow the schema if the tool is strict.

    Args:
        content_schema: JSON schema of an answer that is no call; None for free text.
    """
    marked = _Marked(syntax, special_tokens)
    if offer.mode == "required":
        rules = [_rule("start", marked.text(syntax.before), "calls")]
    elif content_schema is not None:
        rules = [
            # Two kinds of JSON are told apart by the marker, also where calls need none.
            _rule("start", "content |", marked.text(syntax.before or syntax.open), "calls"),
            _rule("content", "%json", content_schema),
        ]
    else:
        rules = _free_until_calls(syntax, marked)
    return Grammar("lark", "\n".join([*rules, *_calls(offer, syntax, marked)]) + "\n")


def _free_until_calls(syntax: Syntax, marked: _Marked) -> list[str]:
    opened = _rule("start", "TEXT | opening", marked.text(syntax.before.removeprefix(syntax.open)), "calls")
    text = "TEXT: /(.|\\n)*/"
    if syntax.bare:  # what begins as a call is one
        opened += " | calls"
        text += f" & ~/{re.escape(syntax.head.partition('{name}')[0])}(.|\\n)*/"
    return [opened, *free_until("opening", "TEXT", syntax.open, marked.ids), text]


def _calls(offer: Offer, syntax: Syntax, marked: _Marked) -> list[str]:
    """The rules of one or more calls and what closes them."""
    tools = offer.callable
    more = f"({_words(marked.text(syntax.between), 'call')}){{0,{MAX_CALLS - 1}}}" if offer.parallel else ""
    rules = [
        _rule("calls", "call", more, marked.text(syntax.after)),
        _rule("call", " | ".join(f"call_{number}" for number in range(len(tools)))),
    ]
    if syntax.id_marker:
        rules += [_rule("call_id", marked.text(syntax.id_marker), "ID"), "ID: /[a-zA-Z0-9]{9}/"]
    for number, tool in enumerate(tools):
        schema, strict = _arguments(tool, offer)
        rules += [
            _rule(
                f"call_{number}",
                *_head(tool.name, syntax, marked),
                f"arguments_{number}",
                marked.text(syntax.tail),
            ),
            _rule(f"arguments_{number}", "%json", compiled_text(schema, strict=strict)),
        ]
    return rules


def _head(name: str, syntax: Syntax, marked: _Marked) -> list[str]:
    before, _, after = syntax.head.partition("{name}")
    if syntax.id_marker:
        return [marked.text(before + name), "call_id?", marked.text(after)]
    return [marked.text(before + name + after)]


def _arguments(tool: Tool, offer: Offer) -> tuple[Schema, bool]:
    """The schema that is enforced, and whether all of it must be enforceable."""
    if tool.strict:
        return tool.parameters, True
    if offer.mode == "auto":
        return _ANY_OBJECT, False
    return _closed(tool.parameters), False


def _closed(schema: Schema) -> Schema:
    """Rules out undeclared arguments, which a model may add without end, where none was meant."""
    properties = schema.get("properties")
    required = schema.get("required", [])
    if not isinstance(properties, dict) or not isinstance(required, list):
        return schema
    declared = all(isinstance(name, str) and name in properties for name in required)
    if properties and declared and _PLAIN_KEYWORDS.issuperset(schema):
        return {**schema, "additionalProperties": False}
    return schema


class _Marked:
    """Text as grammar, its markers as tokens where the tokenizer has such tokens."""

    def __init__(self, syntax: Syntax, special_tokens: Mapping[str, int]) -> None:
        self.ids = syntax.special(special_tokens)
        self._split = re.compile(f"({'|'.join(map(re.escape, self.ids))})" if self.ids else r"(\Z)")

    def text(self, text: str) -> str:
        pieces = filter(None, self._split.split(text))
        return _words(*(mark(piece, self.ids) for piece in pieces))


def _rule(name: str, *parts: str) -> str:
    return f"{name}: {_words(*parts)}"


def _words(*parts: str) -> str:
    return " ".join(filter(None, parts))
