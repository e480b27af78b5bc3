"""Calls as Phi-4 models write them, one tagged JSON list; tools stand in a member of the system message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tokenmill.gateway.tools.calls_as_text import with_calls_as_text
from tokenmill.gateway.tools.declared import Tool
from tokenmill.gateway.tools.syntax import Syntax

SYNTAX = Syntax(
    open="<|tool_call|>",
    close="<|/tool_call|>",
    before="<|tool_call|>[",
    between=", ",
    after="]<|/tool_call|>",
)


def with_tools_in_system(
    messages: Sequence[Mapping[str, object]], tools: Sequence[Tool]
) -> list[Mapping[str, object]]:
    """The messages with the functions as JSON in a member of the system message, and calls as text."""
    talk = [with_calls_as_text(message, SYNTAX) for message in messages]
    if not tools:
        return talk
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools
    ]
    text = msgspec.json.encode(functions).decode()
    if talk[0]["role"] != "system":
        return [{"role": "system", "content": "", "tools": text}, *talk]
    return [{**talk[0], "tools": text}, *talk[1:]]
