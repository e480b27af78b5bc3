"""Fields that ask for output of a form: `response_format`, and vLLM's `guided_*` and `structured_outputs`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from tokenmill.core import bounds
from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import Grammar
from tokenmill.gateway.json_schema import Schema, compiled_text, parse_schema
from tokenmill.gateway.lark import quoted
from tokenmill.gateway.members import known_members, short_name

ANY_JSON_OBJECT: Schema = {"type": "object"}


@dataclass(frozen=True)
class Form:
    """What the answer must match, and the field that says so."""

    field: str
    grammar: Grammar


def parse_form(body: Mapping[str, object]) -> Form | None:
    """The form a request asks for; None for free text. At most one field may ask for one.

    Raises:
        InvalidRequest: naming the field.
    """
    asking = [
        Form(name, grammar)
        for name, parse in _FIELDS.items()
        if name in body and (grammar := parse(name, body[name])) is not None
    ]
    if len(asking) > 1:
        first, second, *_ = (form.field for form in asking)
        raise InvalidRequest(
            f"{first} and {second} both ask for a form of the answer; send one of them", param=second
        )
    return asking[0] if asking else None


def _response_format(where: str, value: object) -> Grammar | None:
    given = known_members(where, value, {"type", "json_schema"})
    kind = given.get("type")
    if kind not in ("text", "json_object", "json_schema"):
        raise InvalidRequest(
            f"{where}.type must be text, json_object or json_schema, not {show(kind)}", param=f"{where}.type"
        )
    if kind != "json_schema":
        return _json_grammar(ANY_JSON_OBJECT) if kind == "json_object" else None
    inner = f"{where}.json_schema"
    if "json_schema" not in given:
        raise InvalidRequest(f"{inner} is missing", param=inner)
    members = known_members(inner, given["json_schema"], {"name", "description", "schema", "strict"})
    short_name(f"{inner}.name", members.get("name"))
    bounds.text(
        f"{inner}.description", members.get("description", ""), max_chars=bounds.MAX_DESCRIPTION_CHARS
    )
    strict = bounds.boolean(f"{inner}.strict", members.get("strict", False))
    if "schema" not in members:
        raise InvalidRequest(f"{inner}.schema is missing", param=f"{inner}.schema")
    return _json_grammar(parse_schema(f"{inner}.schema", members["schema"]), strict=strict)


def _json_grammar(schema: Schema, *, strict: bool = False) -> Grammar:
    return Grammar("json_schema", compiled_text(schema, strict=strict))


def _schema(where: str, value: object) -> Grammar:
    """A schema as an object or as its JSON text."""
    if isinstance(value, str):
        try:
            value = msgspec.json.decode(bounds.text(where, value, max_chars=bounds.MAX_SCHEMA_BYTES))
        except (msgspec.DecodeError, RecursionError):
            raise InvalidRequest(f"{where} is not JSON", param=where) from None
    return _json_grammar(parse_schema(where, value), strict=True)


def _regex(where: str, value: object) -> Grammar:
    return Grammar("regex", _source(where, value))


def _lark(where: str, value: object) -> Grammar:
    return Grammar("lark", _source(where, value))


def _source(where: str, value: object) -> str:
    source = bounds.text(where, value, max_chars=bounds.MAX_GRAMMAR_CHARS)
    if not source:
        raise InvalidRequest(f"{where} must not be empty", param=where)
    return source


def _choice(where: str, value: object) -> Grammar:
    if not isinstance(value, list) or not 1 <= len(value) <= bounds.MAX_GUIDED_CHOICES:
        raise InvalidRequest(
            f"{where} must be a list of 1 to {bounds.MAX_GUIDED_CHOICES} strings, not {show(value)}",
            param=where,
        )
    choices = [_source(f"{where}[{number}]", item) for number, item in enumerate(value)]
    if sum(map(len, choices)) > bounds.MAX_GRAMMAR_CHARS:
        raise InvalidRequest(
            f"{where} must have at most {bounds.MAX_GRAMMAR_CHARS} characters together", param=where
        )
    # One terminal: as rules, each choice would be followed by itself, and the engine bounds how many are.
    return Grammar("lark", f"start: CHOICE\nCHOICE: {' | '.join(map(quoted, choices))}\n")


def _json_object(where: str, value: object) -> Grammar | None:
    return _json_grammar(ANY_JSON_OBJECT) if bounds.boolean(where, value) else None


def _structured_outputs(where: str, value: object) -> Grammar | None:
    given = known_members(where, value, set(_FORMS))
    if len(given) > 1:
        raise InvalidRequest(
            f"{where} must have one of {', '.join(_FORMS)}, not {len(given)} of them", param=where
        )
    for name, form in given.items():
        return _FORMS[name](f"{where}.{name}", form)
    return None


_FORMS: Mapping[str, Callable[[str, object], Grammar | None]] = {
    "json": _schema,
    "regex": _regex,
    "choice": _choice,
    "grammar": _lark,
    "json_object": _json_object,
}

_FIELDS: Mapping[str, Callable[[str, object], Grammar | None]] = {
    "response_format": _response_format,
    "guided_json": _schema,
    "guided_regex": _regex,
    "guided_choice": _choice,
    "guided_grammar": _lark,
    "structured_outputs": _structured_outputs,
}
STRUCTURED_FIELDS = frozenset(_FIELDS)
