"""Calls of earlier turns as text, for templates that do not read them."""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill.gateway.messages import flat_content
from tokenmill.gateway.tools.syntax import Syntax


def with_calls_as_text(message: Mapping[str, object], syntax: Syntax) -> Mapping[str, object]:
    """The message with its calls at the end of its content, as the model would have written them."""
    calls = message.get("tool_calls")
    if not isinstance(calls, list):
        return message
    text = syntax.answer((call["function"]["name"], call["function"]["arguments"]) for call in calls)
    said = flat_content(message)
    content = f"{said}\n{text}" if said else text
    return {key: value for key, value in message.items() if key != "tool_calls"} | {"content": content}
