"""Chat messages as templates expect them: plain data, no nulls, tool arguments as objects."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum, auto

import msgspec

from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest
from tokenmill.models.chat_limits import MAX_NESTING

# What a message's reasoning is called, the name templates read first. Some of them read `thinking`.
_REASONING = ("reasoning_content", "thinking", "reasoning")


class Content(Enum):
    """What a template reads as a message's content."""

    TEXT = auto()
    PARTS = auto()
    BOTH = auto()


def prepared(message: Mapping[str, object], where: str, reads: Content) -> dict[str, object]:
    """A message for a template.

    Content that the template does not read as it is becomes what it reads: parts are joined by newlines, a
    string becomes a part. Nulls are left out, and reasoning goes by each of its names, as with transformers.

    Raises:
        InvalidRequest: it is not an object of JSON values, or its content holds something else than text.
    """
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {show(message)}", param=where)
    result = {str(key): plain(value, f"{where}.{key}") for key, value in message.items() if value is not None}
    if "content" in result:
        result["content"] = _content(result["content"], f"{where}.content", reads)
    calls = result.get("tool_calls")
    if isinstance(calls, list):
        result["tool_calls"] = [_tool_call(call) for call in calls]
    reasoning = next((result[name] for name in _REASONING if name in result), None)
    if reasoning is not None:
        result = {"thinking": reasoning, **result, "reasoning_content": reasoning}
    return result


def _content(content: object, where: str, reads: Content) -> object:
    if isinstance(content, str):
        return [_part(content)] if reads is Content.PARTS else content
    texts = _texts(content, where)
    return "\n".join(texts) if reads is Content.TEXT else [_part(text) for text in texts]


def _part(text: str) -> dict[str, object]:
    return {"type": "text", "text": text}


def _texts(content: object, where: str) -> list[str]:
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of parts, not {show(content)}", param=where)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f'{where}[{number}] must be {{"type": "text", "text": "..."}}, not {show(part)}; '
                "this model reads only text",
                param=f"{where}[{number}]",
            )
        texts.append(text)
    return texts


def _tool_call(call: object) -> object:
    """OpenAI clients send arguments as JSON text, or nothing for none; templates write them as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = msgspec.json.decode(arguments) if arguments.strip() else {}
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


def plain(value: object, where: str, depth: int = 0) -> object:
    """A copy of dict, list, str, int, float, bool and None alone: a template meets nothing else.

    Raises:
        InvalidRequest: there is something else in it, or it is nested too deep.
    """
    if depth > MAX_NESTING:
        raise InvalidRequest(f"{where} is nested more than {MAX_NESTING} deep", param=where)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item, where, depth + 1) for item in value]
    raise InvalidRequest(f"{where} holds {show(value)}, which is not JSON", param=where)
