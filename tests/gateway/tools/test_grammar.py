"""Grammars of calls: what they allow is what the readers read, and arguments follow their schemas."""

from __future__ import annotations

import pytest

from support.grammars import GrammarCheck
from tokenmill.core.request import Grammar
from tokenmill.gateway.tools import hermes, llama3, mistral, phi4
from tokenmill.gateway.tools.declared import Offer, Tool
from tokenmill.gateway.tools.grammar import call_grammar
from tokenmill.gateway.tools.syntax import Syntax

SYNTAXES = {
    "hermes": hermes.SYNTAX,
    "llama3": llama3.SYNTAX,
    "mistral list": mistral.LISTED,
    "mistral named": mistral.NAMED,
    "phi4": phi4.SYNTAX,
}
CITY = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = Tool("get_weather", "", CITY, strict=False)
PUT = Tool("put", "", {"type": "object", "properties": {"n": {"type": "integer"}}}, strict=False)
PARIS = ("get_weather", '{"city": "Paris"}')


def special(syntax: Syntax) -> dict[str, int]:
    markers = [marker for marker in syntax.markers if len(marker) > 1]
    return {marker: 257 + number for number, marker in enumerate(markers)}


def written(syntax: Syntax, *calls: tuple[str, str]) -> str:
    return syntax.answer(calls)


@pytest.fixture(params=[False, True], ids=["markers are text", "markers are tokens"])
def tokens(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@pytest.fixture(params=SYNTAXES)
def syntax(request: pytest.FixtureRequest) -> Syntax:
    return SYNTAXES[request.param]


def made(
    syntax: Syntax, offer: Offer, tokens: bool, content: str | None = None
) -> tuple[GrammarCheck, Grammar]:
    names = special(syntax) if tokens else {}
    grammar = call_grammar(offer, syntax, names, content)
    check = GrammarCheck(names)
    assert check.error(grammar) == ""
    return check, grammar


def test_required_takes_calls_and_nothing_else(syntax: Syntax, tokens: bool) -> None:
    check, grammar = made(syntax, Offer([WEATHER, PUT], "required", parallel=True), tokens)
    assert check.matches(grammar, written(syntax, PARIS))
    assert check.matches(grammar, written(syntax, PARIS, ("put", "{}"), PARIS))
    assert check.taken(grammar, "Sure")[0] == ""
    assert not check.matches(grammar, written(syntax, ("get_weather", "{}"))), "city is required"
    assert not check.matches(grammar, written(syntax, ("get_weather", '{"city": 1}')))
    assert not check.matches(grammar, written(syntax, ("get_weather", '{"city": "a", "b": 1}'))), "undeclared"
    assert not check.matches(grammar, written(syntax, ("put", '{"city": "a"}')))
    assert not check.matches(grammar, written(syntax, ("other", "{}")))
    assert not check.matches(grammar, "")


@pytest.mark.parametrize(
    "schema",
    [
        {"properties": {"a": {}}, "required": [{}]},
        {"properties": {"a": {}}, "required": [["a"]]},
        {"properties": {"a": {}}, "required": {"a": 1}},
        {"properties": ["a"], "required": ["a"]},
        {"properties": None, "required": None, "additionalProperties": [[]]},
        {"$defs": 1, "title": {}, "description": []},
    ],
)
@pytest.mark.parametrize("strict", [False, True])
def test_any_content_of_a_schema_makes_a_grammar_for_the_engine_to_judge(
    schema: dict[str, object], strict: bool
) -> None:
    for mode in ("required", "auto"):
        offer = Offer([Tool("f", "", schema, strict=strict)], mode)
        assert call_grammar(offer, hermes.SYNTAX, {}).kind == "lark"


def test_a_named_function_is_called_once(syntax: Syntax, tokens: bool) -> None:
    check, grammar = made(syntax, Offer([WEATHER, PUT], "required", named="put", parallel=False), tokens)
    assert check.matches(grammar, written(syntax, ("put", '{"n": 1}')))
    assert not check.matches(grammar, written(syntax, PARIS))
    assert not check.matches(grammar, written(syntax, ("put", "{}"), ("put", "{}")))


def test_auto_leaves_text_free_until_a_call_begins(syntax: Syntax, tokens: bool) -> None:
    check, grammar = made(syntax, Offer([WEATHER, PUT], "auto", parallel=True), tokens)
    for text in ("", 'Hello.\nAll < is { well [é] \\ "x".', "<tool", '{"a": 1}'):
        assert check.matches(grammar, text)
    prose = "" if syntax.bare else "Let me see. "
    assert check.matches(grammar, prose + written(syntax, PARIS))
    assert check.matches(grammar, prose + written(syntax, PARIS, ("put", '{"any": [1, {}]}')))
    unknown = prose + written(syntax, ("other", "{}"))
    assert "other" not in check.taken(grammar, unknown)[0]
    no_json = prose + written(syntax, ("put", "{'a'}"))
    assert "'" not in check.taken(grammar, no_json)[0]


def test_llama_calls_may_follow_their_token(tokens: bool) -> None:
    check, grammar = made(llama3.SYNTAX, Offer([PUT], "auto"), tokens)
    assert check.matches(grammar, '<|python_tag|>{"name": "put", "parameters": {}}')
    assert not check.matches(grammar, "<|python_tag|>print(1)")


def test_mistral_calls_may_carry_ids(tokens: bool) -> None:
    check, grammar = made(mistral.NAMED, Offer([PUT], "required"), tokens)
    assert check.matches(grammar, "[TOOL_CALLS]put[CALL_ID]abcdefghi[ARGS]{}")
    assert not check.matches(grammar, "[TOOL_CALLS]put[CALL_ID]abc[ARGS]{}")


def test_without_parallel_calls_the_first_is_the_last(syntax: Syntax, tokens: bool) -> None:
    check, grammar = made(syntax, Offer([WEATHER], "auto", parallel=False), tokens)
    assert check.matches(grammar, written(syntax, PARIS))
    assert not check.matches(grammar, written(syntax, PARIS, PARIS))


def test_a_strict_tool_holds_in_auto_too(syntax: Syntax) -> None:
    strict = Tool("get_weather", "", CITY, strict=True)
    check, grammar = made(syntax, Offer([strict, PUT], "auto"), False)
    assert check.matches(grammar, written(syntax, PARIS))
    assert not check.matches(grammar, written(syntax, ("get_weather", "{}")))


def test_an_answer_that_is_no_call_may_have_a_schema(syntax: Syntax, tokens: bool) -> None:
    content = '{"type":"object","properties":{"name":{"type":"string"}},"required":["name"]}'
    check, grammar = made(syntax, Offer([WEATHER], "auto"), tokens, content)
    assert check.matches(grammar, '{"name": "Ann"}')
    assert check.matches(grammar, '{"name":"get_weathers"}')
    marker = syntax.open if syntax.bare else ""
    assert check.matches(grammar, marker + written(syntax, PARIS))
    assert not check.matches(grammar, "Hello")


def test_keywords_nobody_can_enforce_are_an_error_only_where_strict() -> None:
    odd = {"type": "object", "properties": {"a": {"type": "string", "format": "no-such-format"}}}
    for strict in (False, True):
        offer = Offer([Tool("put", "", odd, strict=strict)], "required")
        assert bool(GrammarCheck({}).error(call_grammar(offer, hermes.SYNTAX, {}))) == strict


def test_references_inside_a_schema_are_its_own() -> None:
    pet = {"type": "object", "properties": {"n": {"type": "integer"}}, "required": ["n"]}
    schema = {
        "type": "object",
        "properties": {"pet": {"$ref": "#/$defs/Pet"}},
        "required": ["pet"],
        "$defs": {"Pet": pet},
    }
    check, grammar = made(hermes.SYNTAX, Offer([Tool("put", "", schema, False), WEATHER], "required"), False)
    assert check.matches(grammar, written(hermes.SYNTAX, ("put", '{"pet": {"n": 3}}')))
    assert not check.matches(grammar, written(hermes.SYNTAX, ("put", '{"pet": {"n": "3"}}')))


def test_white_space_between_tokens_is_bounded() -> None:
    check, grammar = made(hermes.SYNTAX, Offer([PUT], "required"), False)
    assert check.matches(grammar, written(hermes.SYNTAX, ("put", '{\n  "n": 1\n}')))
    assert not check.matches(grammar, written(hermes.SYNTAX, ("put", "{\n\n}")))
