"""Calls as Phi-4 models write them, one tagged JSON list; tools stand in a member of the system message."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

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
    """The messages with the functions as JSON in a member of the system message."""
    functions = [
        {"name": tool.name, "description": tool.description, "parameters": tool.parameters} for tool in tools
    ]
    text = msgspec.json.encode(functions).decode()
    first, rest = (messages[0], messages[1:]) if messages[0]["role"] == "system" else (None, messages)
    system = first or {"role": "system", "content": ""}
    return [{**system, "tools": text}, *rest]
