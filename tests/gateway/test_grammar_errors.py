"""What is wrong with a grammar is told of the field it came from, by the engine's own compiler."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.gateways import CHAT, COMPLETIONS, chat, completion, make_gateway
from support.scripted import LineTemplate
from tokenmill.core import bounds
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.errors import GenerationFailed, InvalidRequest
from tokenmill.core.request import GenerateRequest
from tokenmill.engine.grammar.build import GrammarError, build_matcher
from tokenmill.engine.grammar.matcher import GrammarFailed
from tokenmill.engine.grammar.vocabulary import GrammarVocabulary, build_tokenizer

TOKENIZER = build_tokenizer(
    GrammarVocabulary([bytes([byte]) for byte in range(256)] + [b"<end>"], [256], [256])
)
ODD = {"type": "object", "properties": {"a": {"type": "string", "format": "zzz"}}}
BROKEN = {"type": "object", "properties": {"a": {}}, "required": [{}]}
CALLING = LineTemplate("<tool_call>", reads_tools=True)
THINKING = LineTemplate("</think>", ending="<think>")


async def compiling(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """Refuses what the engine refuses, in its words."""
    grammar = request.sampling.grammar
    if grammar is not None:
        bounds.grammar(grammar)
        try:
            build_matcher(TOKENIZER, grammar.kind, grammar.source)
        except GrammarError as error:
            what = bounds.GRAMMAR_KINDS[grammar.kind]
            raise InvalidRequest(f"the {what} cannot be used: {error}", code="invalid_grammar") from None
    yield Delta(text="x", finish_reason="stop", usage=Usage(1, 1))


def tools(*schemas: dict[str, Any], strict: bool = False) -> list[dict[str, object]]:
    return [
        {"type": "function", "function": {"name": f"f{number}", "parameters": schema, "strict": strict}}
        for number, schema in enumerate(schemas)
    ]


def schema_format(schema: object) -> dict[str, object]:
    return {"type": "json_schema", "json_schema": {"name": "a", "schema": schema, "strict": True}}


def named(name: str) -> dict[str, object]:
    return {"type": "function", "function": {"name": name}}


FIELDS: dict[str, tuple[dict[str, object], str, str]] = {
    "a schema": (
        {"response_format": schema_format(ODD)},
        "response_format",
        "cannot be used: Unknown format: zzz",
    ),
    "guided json": ({"guided_json": ODD}, "guided_json", "cannot be used: Unknown format: zzz"),
    "a regex": ({"guided_regex": "(a"}, "guided_regex", "cannot be used: regex parse error: unclosed group"),
    "a grammar": (
        {"guided_grammar": "start: foo"},
        "guided_grammar",
        'cannot be used: at 1(8): unknown name: "foo"',
    ),
    "a structured output": (
        {"structured_outputs": {"regex": "[^\\s\\S]"}},
        "structured_outputs",
        "cannot be used: no text matches it",
    ),
    "long choices": (
        {"guided_choice": ["é" * 30_000]},
        "guided_choice",
        "must have at most 131072 characters, not 180025",
    ),
    "a strict tool": (
        {"tools": tools({}, ODD, strict=True)},
        "tools[1].function.parameters",
        "cannot be used: Unknown format: zzz",
    ),
    "a tool that is called": (
        {"tools": tools({}, ODD, BROKEN), "tool_choice": named("f2")},
        "tools[2].function.parameters",
        "cannot be used: Expected string for 'required' item, got {}",
    ),
    "a required tool": (
        {"tools": tools({}, BROKEN), "tool_choice": "required"},
        "tools[1].function.parameters",
        "cannot be used: Expected string for 'required' item, got {}",
    ),
    "a schema beside tools": (
        {"tools": tools({}), "response_format": schema_format(ODD)},
        "response_format",
        "cannot be used: Unknown format: zzz",
    ),
    "a pattern of some tool": (
        {"tools": tools({}, {"properties": {"a": {"pattern": "("}}}), "tool_choice": "required"},
        "tools",
        "cannot be used: regex parse error: unclosed group",
    ),
    "a pattern of the tool": (
        {"tools": tools({"properties": {"a": {"pattern": "("}}}), "tool_choice": "required"},
        "tools[0].function.parameters",
        "cannot be used: regex parse error: unclosed group",
    ),
}


@pytest.mark.parametrize("name", FIELDS)
@pytest.mark.parametrize("stream", [False, True])
async def test_a_refused_grammar_is_told_of_its_field(name: str, stream: bool) -> None:
    fields, param, reason = FIELDS[name]
    response = await make_gateway(compiling, template=CALLING).post(CHAT, chat(**fields, stream=stream))
    assert response.status_code == 400
    error = response.json()["error"]
    assert error["param"] == param
    assert error["message"] == f"{param} {reason}"


async def test_thoughts_before_an_answer_do_not_change_that() -> None:
    response = await make_gateway(compiling, template=THINKING).post(CHAT, chat(guided_json=ODD))
    error = response.json()["error"]
    assert error["message"] == "guided_json cannot be used: Unknown format: zzz"


async def test_completions_tell_it_too() -> None:
    response = await make_gateway(compiling).post(COMPLETIONS, completion(guided_regex="(a"))
    assert response.json()["error"]["param"] == "guided_regex"


async def test_what_is_not_said_of_the_grammar_stays_as_it_is() -> None:
    async def refusing(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        raise InvalidRequest("the prompt is odd")
        yield

    async def failing(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        raise GenerationFailed("it broke")
        yield

    refused = await make_gateway(refusing).post(CHAT, chat(guided_json={}))
    assert refused.json()["error"]["param"] is None
    failed = await make_gateway(failing).post(CHAT, chat(guided_json={}))
    assert (failed.status_code, failed.json()["error"]["code"]) == (500, "generation_failed")


@pytest.mark.parametrize(
    ("fields", "param"),
    [
        ({"guided_regex": "a"}, "guided_regex"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"tools": tools({})}, "tools[0].function.parameters"),
        ({"tools": tools({}, {})}, "tools"),
    ],
)
async def test_a_grammar_that_cannot_be_followed_is_its_authors_fault(
    fields: dict[str, object], param: str
) -> None:
    async def failing(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="a")
        raise GrammarFailed("the grammar takes too much time a token")

    gateway = make_gateway(failing, template=CALLING)
    response = await gateway.post(CHAT, chat(**fields))
    assert response.status_code == 400
    assert response.json()["error"] == {
        "message": f"{param}: the grammar takes too much time a token",
        "type": "invalid_request_error",
        "param": param,
        "code": "grammar_failed",
    }
    streamed = await gateway.stream(CHAT, chat(**fields))
    assert streamed[-1]["error"]["param"] == param
