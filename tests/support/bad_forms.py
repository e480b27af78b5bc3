"""Requests with tools, calls and forms of the answer that must be refused, each with code and field."""

from __future__ import annotations

from typing import Any

from support.gateways import chat

Case = tuple[object, str, str | None]
BAD, UNSUPPORTED = "invalid_value", "unsupported_parameter"


def tool(name: object = "f", **function: object) -> dict[str, Any]:
    return {"type": "function", "function": {"name": name, **function}}


def deep(levels: int) -> dict[str, object]:
    schema: dict[str, object] = {}
    for _ in range(levels):
        schema = {"type": "object", "x": schema}
    return schema


def history(*messages: dict[str, object]) -> dict[str, object]:
    return {**chat(), "messages": [{"role": "user", "content": "hi"}, *messages]}


def called(**call: object) -> dict[str, object]:
    return history({"role": "assistant", "tool_calls": [call]})


def schema(**members: object) -> dict[str, object]:
    return chat(response_format={"type": "json_schema", "json_schema": members})


CALL: dict[str, object] = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
TOOLS = [tool()]
NAMED = {"type": "function", "function": {"name": "f"}}
F = "tools[0].function"
CALLS = "messages[1].tool_calls"

TOOL_CASES: dict[str, Case] = {
    "tools as an object": (chat(tools={}), BAD, "tools"),
    "a tool as text": (chat(tools=["f"]), BAD, "tools[0]"),
    "too many tools": (chat(tools=[tool(f"f{n}") for n in range(129)]), BAD, "tools"),
    "too much of tools": (
        chat(tools=[tool(f"f{n}", description="x" * 16_000) for n in range(5)]),
        BAD,
        "tools",
    ),
    "a tool of another type": (chat(tools=[{"type": "custom"}]), UNSUPPORTED, "tools[0].type"),
    "a tool without a type": (chat(tools=[{"function": {"name": "f"}}]), UNSUPPORTED, "tools[0].type"),
    "a tool without a function": (chat(tools=[{"type": "function"}]), BAD, F),
    "an unknown member of a tool": (chat(tools=[tool() | {"x": 1}]), UNSUPPORTED, "tools[0].x"),
    "an unknown member of a function": (chat(tools=[tool(x=1)]), UNSUPPORTED, f"{F}.x"),
    "a function without a name": (chat(tools=[tool(None)]), BAD, f"{F}.name"),
    "a name with a dot": (chat(tools=[tool("a.b")]), BAD, f"{F}.name"),
    "a name with a line": (chat(tools=[tool("a\n")]), BAD, f"{F}.name"),
    "a long name": (chat(tools=[tool("x" * 65)]), BAD, f"{F}.name"),
    "a name twice": (chat(tools=[tool(), tool()]), BAD, "tools[1].function.name"),
    "a description of numbers": (chat(tools=[tool(description=5)]), BAD, f"{F}.description"),
    "a long description": (chat(tools=[tool(description="x" * 16_385)]), BAD, f"{F}.description"),
    "strict as text": (chat(tools=[tool(strict="yes")]), BAD, f"{F}.strict"),
    "parameters as a list": (chat(tools=[tool(parameters=[1])]), BAD, f"{F}.parameters"),
    "parameters of an array": (
        chat(tools=[tool(parameters={"type": "array"})]),
        BAD,
        f"{F}.parameters.type",
    ),
    "deep parameters": (chat(tools=[tool(parameters=deep(40))]), BAD, f"{F}.parameters"),
    "a choice without tools": (chat(tool_choice="required"), BAD, "tool_choice"),
    "a named choice without tools": (chat(tool_choice=NAMED), BAD, "tool_choice"),
    "an unknown choice": (chat(tools=TOOLS, tool_choice="any"), BAD, "tool_choice"),
    "a choice as a number": (chat(tools=TOOLS, tool_choice=1), BAD, "tool_choice"),
    "a choice of another function": (
        chat(tools=TOOLS, tool_choice={"type": "function", "function": {"name": "g"}}),
        BAD,
        "tool_choice",
    ),
    "a choice without a function": (
        chat(tools=TOOLS, tool_choice={"type": "function"}),
        BAD,
        "tool_choice.function",
    ),
    "allowed tools": (
        chat(tools=TOOLS, tool_choice={"type": "allowed_tools", "allowed_tools": {}}),
        UNSUPPORTED,
        "tool_choice.type",
    ),
    "parallel calls as text": (
        chat(tools=TOOLS, parallel_tool_calls="no"),
        BAD,
        "parallel_tool_calls",
    ),
    "a required call and a schema": (
        chat(tools=TOOLS, tool_choice="required", response_format={"type": "json_object"}),
        BAD,
        "tool_choice",
    ),
    "tools and a regex": (chat(tools=TOOLS, guided_regex="a"), BAD, "tools"),
    "functions": (chat(functions=[{"name": "f"}]), UNSUPPORTED, "functions"),
    "a function call": (chat(function_call={"name": "f"}), UNSUPPORTED, "function_call"),
}

HISTORY_CASES: dict[str, Case] = {
    "the role function": (
        history({"role": "function", "name": "f", "content": "1"}),
        UNSUPPORTED,
        "messages[1].role",
    ),
    "a result without its call": (
        history({"role": "tool", "content": "1"}),
        BAD,
        "messages[1].tool_call_id",
    ),
    "calls as an object": (history({"role": "assistant", "tool_calls": {}}), BAD, CALLS),
    "too many calls": (history({"role": "assistant", "tool_calls": [CALL] * 129}), BAD, CALLS),
    "a call as text": (history({"role": "assistant", "tool_calls": ["f"]}), BAD, f"{CALLS}[0]"),
    "a call without an id": (called(function=CALL["function"]), BAD, f"{CALLS}[0].id"),
    "a call of another type": (called(**CALL | {"type": "custom"}), UNSUPPORTED, f"{CALLS}[0].type"),
    "a call without a function": (called(id="c", type="function"), BAD, f"{CALLS}[0].function"),
    "arguments as an object": (
        called(**CALL | {"function": {"name": "f", "arguments": {}}}),
        BAD,
        f"{CALLS}[0].function.arguments",
    ),
}

FORM_CASES: dict[str, Case] = {
    "a format as text": (chat(response_format="json"), BAD, "response_format"),
    "a format without a type": (chat(response_format={}), BAD, "response_format.type"),
    "an unknown format": (chat(response_format={"type": "xml"}), BAD, "response_format.type"),
    "a schema format without one": (
        chat(response_format={"type": "json_schema"}),
        BAD,
        "response_format.json_schema",
    ),
    "a schema without a name": (schema(schema={}), BAD, "response_format.json_schema.name"),
    "a schema with a bad name": (schema(name="a b", schema={}), BAD, "response_format.json_schema.name"),
    "a named schema without one": (schema(name="a"), BAD, "response_format.json_schema.schema"),
    "a schema as text": (schema(name="a", schema="{}"), BAD, "response_format.json_schema.schema"),
    "a deep schema": (schema(name="a", schema=deep(40)), BAD, "response_format.json_schema.schema"),
    "a large schema": (
        schema(name="a", schema={"description": "x" * 70_000}),
        BAD,
        "response_format.json_schema.schema",
    ),
    "two forms": (
        chat(response_format={"type": "json_object"}, guided_choice=["a"]),
        BAD,
        "guided_choice",
    ),
    "guided JSON that is none": (chat(guided_json="{"), BAD, "guided_json"),
    "guided JSON of a number": (chat(guided_json=5), BAD, "guided_json"),
    "an empty regex": (chat(guided_regex=""), BAD, "guided_regex"),
    "a long regex": (chat(guided_regex="x" * 70_000), BAD, "guided_regex"),
    "no choices": (chat(guided_choice=[]), BAD, "guided_choice"),
    "an empty choice": (chat(guided_choice=["a", ""]), BAD, "guided_choice[1]"),
    "a choice of numbers": (chat(guided_choice=[1]), BAD, "guided_choice[0]"),
    "a grammar as an object": (chat(guided_grammar={}), BAD, "guided_grammar"),
    "two structured outputs": (
        chat(structured_outputs={"regex": "a", "json": {}}),
        BAD,
        "structured_outputs",
    ),
    "an unknown structured output": (
        chat(structured_outputs={"structural_tag": "x"}),
        UNSUPPORTED,
        "structured_outputs.structural_tag",
    ),
    "variables as a list": (chat(chat_template_kwargs=[]), BAD, "chat_template_kwargs"),
    "large variables": (chat(chat_template_kwargs={"a": "x" * 20_000}), BAD, "chat_template_kwargs"),
    "deep variables": (chat(chat_template_kwargs=deep(10)), BAD, "chat_template_kwargs"),
}
