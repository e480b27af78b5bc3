"""Calls of models whose template knows nothing of tools: the conversation itself explains them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

from tokenmill.gateway.messages import flat_content
from tokenmill.gateway.tools import hermes
from tokenmill.gateway.tools.calls_as_text import with_calls_as_text
from tokenmill.gateway.tools.declared import Tool

SYNTAX = hermes.SYNTAX

_EXPLANATION = """\
You can call functions. They are, one JSON object a line:
{functions}
To call one, write nothing but this, with the function's name and its arguments as JSON:
{example}
Results come back between <tool_response> and </tool_response>. When no function helps, answer in words."""


def explained(messages: Sequence[Mapping[str, object]], tools: Sequence[Tool]) -> list[Mapping[str, object]]:
    """The messages with tools, calls and results as text.

    Tools are described in the system message; calls become text of the assistant; results become user
    messages, joined with what the user says next, because many templates want the two to take turns.
    """
    result: list[Mapping[str, object]] = []
    after_tool = False
    for message in messages:
        plain = _plain(message)
        if after_tool and plain["role"] == "user":
            result[-1] = {"role": "user", "content": f"{result[-1]['content']}\n{flat_content(plain)}"}
        else:
            result.append(plain)
        after_tool = message["role"] == "tool" or (after_tool and message["role"] == "user")
    if not tools:
        return result
    text = _explanation(tools)
    if result[0]["role"] == "system":
        return [{**result[0], "content": f"{flat_content(result[0])}\n\n{text}"}, *result[1:]]
    return [{"role": "system", "content": text}, *result]


def _explanation(tools: Sequence[Tool]) -> str:
    functions = "\n".join(msgspec.json.encode(_described(tool)).decode() for tool in tools)
    example = SYNTAX.before + SYNTAX.call("NAME", "{...}") + SYNTAX.after
    return _EXPLANATION.replace("{example}", example).replace("{functions}", functions)


def _described(tool: Tool) -> dict[str, object]:
    described: dict[str, object] = {"name": tool.name, "parameters": tool.parameters}
    return described | ({"description": tool.description} if tool.description else {})


def _plain(message: Mapping[str, object]) -> Mapping[str, object]:
    if message["role"] == "tool":
        return {"role": "user", "content": f"<tool_response>\n{flat_content(message)}\n</tool_response>"}
    return with_calls_as_text(message, SYNTAX)
