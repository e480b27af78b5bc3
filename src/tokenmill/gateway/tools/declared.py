"""`tools` and `tool_choice` of a chat request, held against the bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from tokenmill.core import bounds
from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest, UnsupportedParameter
from tokenmill.gateway.json_schema import Schema, parse_schema
from tokenmill.gateway.members import known_members, short_name

_NO_PARAMETERS: Schema = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True)
class Tool:
    """A function the model may call.

    Attributes:
        parameters: JSON schema of its arguments, an object.
        strict: calls must match the schema even where the model is free to call or not.
    """

    name: str
    description: str
    parameters: Schema
    strict: bool

    def described(self) -> dict[str, object]:
        """The function as chat templates expect it."""
        function = {"name": self.name, "description": self.description, "parameters": self.parameters}
        return {"type": "function", "function": function}


@dataclass(frozen=True)
class Offer:
    """The tools of a request and how the model may use them.

    Attributes:
        tools: at least one; the prompt describes them all.
        mode: auto, the model decides; required, at least one call.
        named: the one function that must be called, in mode required.
        parallel: whether an answer may hold several calls; None leaves it to the model's family.
    """

    tools: Sequence[Tool]
    mode: Literal["auto", "required"]
    named: str | None = None
    parallel: bool | None = None

    @property
    def callable(self) -> Sequence[Tool]:
        """The tools that may be called."""
        return [tool for tool in self.tools if self.named in (None, tool.name)]


def parse_offer(body: Mapping[str, object]) -> Offer | None:
    """What the request offers; None when the model must not call anything.

    With the choice `none` it is not told of the tools either: a call it made all the same would be content.

    Raises:
        InvalidRequest, UnsupportedParameter: naming the field.
    """
    tools = parse_tools(body.get("tools", []))
    parallel = None
    if "parallel_tool_calls" in body:
        parallel = bounds.boolean("parallel_tool_calls", body["parallel_tool_calls"])
    choice = body.get("tool_choice", "auto" if tools else "none")
    mode, named = _choice(choice)
    if mode == "required" and not tools:
        raise InvalidRequest("tool_choice asks for a call, but the request has no tools", param="tool_choice")
    if named is not None and named not in {tool.name for tool in tools}:
        raise InvalidRequest(
            f"tool_choice names the function {show(named)}, which is not among the tools", param="tool_choice"
        )
    if mode == "none" or not tools:
        return None
    return Offer(tools, mode, named, parallel if named is None else False)


def parse_tools(value: object) -> Sequence[Tool]:
    """`tools`: a list of functions with distinct names. Raises InvalidRequest or UnsupportedParameter."""
    if not isinstance(value, list):
        raise InvalidRequest(f"tools must be a list of objects, not {show(value)}", param="tools")
    if len(value) > bounds.MAX_TOOLS:
        raise InvalidRequest(
            f"tools must have at most {bounds.MAX_TOOLS} items, not {len(value)}", param="tools"
        )
    if (size := len(msgspec.json.encode(value))) > bounds.MAX_TOOLS_BYTES:
        raise InvalidRequest(
            f"tools must have at most {bounds.MAX_TOOLS_BYTES} bytes together, not {size}", param="tools"
        )
    tools = [_tool(f"tools[{number}]", item) for number, item in enumerate(value)]
    seen: set[str] = set()
    for number, tool in enumerate(tools):
        if tool.name in seen:
            raise InvalidRequest(
                f"tools[{number}].function.name is {show(tool.name)} a second time",
                param=f"tools[{number}].function.name",
            )
        seen.add(tool.name)
    return tools


def _tool(where: str, value: object) -> Tool:
    tool = known_members(where, value, {"type", "function"})
    if tool.get("type") != "function":
        raise UnsupportedParameter(
            f"{where}.type must be function, not {show(tool.get('type'))}", param=f"{where}.type"
        )
    inner = f"{where}.function"
    given = known_members(inner, tool.get("function"), {"name", "description", "parameters", "strict"})
    parameters = given.get("parameters")
    return Tool(
        name=short_name(f"{inner}.name", given.get("name")),
        description=bounds.text(
            f"{inner}.description", given.get("description", ""), max_chars=bounds.MAX_DESCRIPTION_CHARS
        ),
        parameters=_parameters(f"{inner}.parameters", parameters) if parameters else _NO_PARAMETERS,
        strict=bounds.boolean(f"{inner}.strict", given.get("strict", False)),
    )


def _parameters(where: str, value: object) -> Schema:
    schema = parse_schema(where, value)
    if schema.get("type", "object") != "object":
        raise InvalidRequest(
            f"{where}.type must be object, not {show(schema['type'])}: arguments are an object",
            param=f"{where}.type",
        )
    return {"type": "object", **schema}


def _choice(value: object) -> tuple[Literal["none", "auto", "required"], str | None]:
    """How to choose, and the one function if it is named."""
    if value == "none" or value == "auto" or value == "required":
        return value, None
    if isinstance(value, dict) and value.get("type") == "function":
        choice = known_members("tool_choice", value, {"type", "function"})
        function = known_members("tool_choice.function", choice.get("function"), {"name"})
        return "required", short_name("tool_choice.function.name", function.get("name"))
    if isinstance(value, dict) and isinstance(value.get("type"), str):
        raise UnsupportedParameter(
            f"tool_choice.type must be function, not {show(value['type'])}", param="tool_choice.type"
        )
    raise InvalidRequest(
        f"tool_choice must be none, auto, required or an object that names a function, not {show(value)}",
        param="tool_choice",
    )
