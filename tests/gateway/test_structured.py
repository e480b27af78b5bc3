"""Forms of the answer: which field asks for which grammar, and what those grammars allow."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pytest

from support.gateways import CHAT, COMPLETIONS, Gateway, chat, completion
from support.grammars import GrammarCheck
from tokenmill.core import bounds
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.build import build_matcher
from tokenmill.engine.grammar.matcher import Allowance, Matcher
from tokenmill.engine.grammar.vocabulary import GrammarVocabulary, build_tokenizer
from tokenmill.gateway.structured import parse_form

SCHEMA = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
NAMED = {"type": "json_schema", "json_schema": {"name": "answer", "schema": SCHEMA, "strict": True}}

# fields, texts that match, texts that do not
FORMS: dict[str, tuple[dict[str, Any], list[str], list[str]]] = {
    "json_object": (
        {"response_format": {"type": "json_object"}},
        ["{}", '{"a": [1, "}"]}', '{\n  "a": null}'],
        ["[]", "1", "hello", "", "{'a': 1}"],
    ),
    "json_schema": (
        {"response_format": NAMED},
        ['{"n": 1}', '{"n":1}'],
        ["{}", '{"n": "1"}', '{"m": 1}', "1"],
    ),
    "guided_json": ({"guided_json": SCHEMA}, ['{"n": 1}'], ["{}"]),
    "guided_json as text": ({"guided_json": json.dumps(SCHEMA)}, ['{"n": 1}'], ["{}"]),
    "guided_regex": ({"guided_regex": r"[ab]{2}/\d"}, ["ab/1", "bb/9"], ["ab", "abb/1", "ab/x"]),
    "guided_choice": (
        {"guided_choice": ["yes", 'a "b" \\ /', "é\n", "\b\f\t\x01\x7f\u2028🦙 \\u0041"]},
        ["yes", 'a "b" \\ /', "é\n", "\b\f\t\x01\x7f\u2028🦙 \\u0041"],
        ["no", "yesyes", "ye", ""],
    ),
    "guided_grammar": ({"guided_grammar": 'start: "a" ("b" | "c")+\n'}, ["ab", "acb"], ["a", "abd"]),
    "structured json": ({"structured_outputs": {"json": SCHEMA}}, ['{"n": 1}'], ["{}"]),
    "structured regex": ({"structured_outputs": {"regex": "a+"}}, ["aa"], ["b"]),
    "structured choice": ({"structured_outputs": {"choice": ["a"]}}, ["a"], ["b"]),
    "structured grammar": ({"structured_outputs": {"grammar": 'start: "a"'}}, ["a"], ["b"]),
    "structured object": ({"structured_outputs": {"json_object": True, "regex": None}}, ["{}"], ["[]"]),
}


def parse_grammar(fields: Mapping[str, object]) -> Grammar | None:
    form = parse_form(fields)
    return None if form is None else form.grammar


@pytest.mark.parametrize("name", FORMS)
def test_each_form_allows_what_it_says(name: str) -> None:
    fields, matching, other = FORMS[name]
    grammar = parse_grammar(fields)
    assert grammar is not None
    check = GrammarCheck({})
    assert check.error(grammar) == ""
    assert [text for text in matching if not check.matches(grammar, text)] == []
    assert [text for text in other if check.matches(grammar, text)] == []


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"response_format": {"type": "text"}},
        {"structured_outputs": {}},
        {"structured_outputs": {"json_object": False}},
    ],
)
def test_without_a_form_text_is_free(fields: dict[str, object]) -> None:
    assert parse_grammar(fields) is None


def test_a_strict_schema_must_be_enforceable() -> None:
    odd = {"type": "string", "format": "no-such-format"}
    for strict in (False, True):
        members = {"name": "a", "schema": odd, "strict": strict}
        grammar = parse_grammar({"response_format": {"type": "json_schema", "json_schema": members}})
        assert grammar is not None
        assert bool(GrammarCheck({}).error(grammar)) == strict


def test_a_client_cannot_set_how_its_schema_is_compiled() -> None:
    grammar = parse_grammar({"guided_json": {**SCHEMA, "x-guidance": {"whitespace_pattern": "x*"}}})
    assert grammar is not None
    assert not GrammarCheck({}).matches(grammar, '{x"n": 1}')


@pytest.mark.parametrize("chars", [4, 64])
def test_as_many_choices_as_are_allowed_can_be_followed_by_the_engine(chars: int) -> None:
    choices = [f"{number:04}".rjust(chars, "-") for number in range(bounds.MAX_GUIDED_CHOICES)]
    grammar = parse_grammar({"guided_choice": choices})
    assert grammar is not None
    vocabulary = GrammarVocabulary([bytes([byte]) for byte in range(256)] + [b"<end>"], [256], [256])
    state = build_matcher(build_tokenizer(vocabulary), grammar.kind, grammar.source)
    matcher = Matcher(state, [256], Allowance(1))
    bits = np.zeros(36, dtype=np.uint8)
    for byte in choices[-1].encode():
        matcher.fill(bits)
        assert np.unpackbits(bits, bitorder="little")[byte]
        matcher.accept(byte)
    assert matcher.complete


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_both_routes_take_the_same_depth(gateway: Gateway, path: str, body: dict[str, object]) -> None:
    schema: dict[str, object] = {"title": "x"}
    for _ in range(bounds.MAX_SCHEMA_DEPTH - 1):
        schema = {"items": schema}
    assert (await gateway.post(path, {**body, "guided_json": schema})).status_code == 200
    grammar = gateway.replica.requests[-1].sampling.grammar
    assert grammar is not None
    bounds.grammar(grammar)
    refused = await gateway.post(path, {**body, "guided_json": {"items": schema}})
    assert refused.json()["error"]["param"] == "guided_json"


@pytest.mark.parametrize(("path", "body"), [(CHAT, chat()), (COMPLETIONS, completion())])
async def test_both_routes_pass_the_grammar_on(gateway: Gateway, path: str, body: dict[str, object]) -> None:
    assert (await gateway.post(path, {**body, "guided_regex": "a+"})).status_code == 200
    assert gateway.replica.requests[-1].sampling.grammar == Grammar("regex", "a+")
    assert (await gateway.post(path, {**body, "response_format": NAMED})).status_code == 200
    grammar = gateway.replica.requests[-1].sampling.grammar
    assert grammar is not None
    assert GrammarCheck({}).matches(grammar, '{"n": 1}')
