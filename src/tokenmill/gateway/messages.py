"""Chat messages as a chat template wants them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenmill.core import bounds
from tokenmill.core.bounds import MAX_MESSAGES, show
from tokenmill.core.errors import InvalidRequest, UnsupportedParameter
from tokenmill.gateway.members import known_members, short_name

Message = dict[str, object]

ROLES = ("system", "developer", "user", "assistant", "tool")
# What clients send back from earlier answers and no template here reads.
_NO_OPS = frozenset({"refusal", "annotations", "reasoning"})
# A hint that changes no answer.
_PART_NO_OPS = frozenset({"cache_control"})
# What an assistant's message may have and no content beside it.
_INSTEAD = frozenset({"tool_calls", "refusal"})


def parse_messages(value: object) -> Sequence[Message]:
    """The messages, checked; `developer` is `system` to templates.

    Content stays a string or a list of parts: which of the two a template reads is known where it is
    rendered. Where an assistant's message has something instead, it is the empty string.

    Raises:
        InvalidRequest, UnsupportedParameter: naming the message.
    """
    if not isinstance(value, list):
        raise InvalidRequest(f"messages must be a list of objects, not {show(value)}", param="messages")
    if not 1 <= len(value) <= MAX_MESSAGES:
        raise InvalidRequest(
            f"messages must have from 1 to {MAX_MESSAGES} items, not {len(value)}", param="messages"
        )
    return [_message(f"messages[{number}]", item) for number, item in enumerate(value)]


def _message(where: str, value: object) -> Message:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, not {show(value)}", param=where)
    given = {key: item for key, item in value.items() if item is not None}
    role = given.pop("role", None)
    if role == "function":
        raise UnsupportedParameter(
            f"{where}.role function is not supported; results of calls have the role tool and a tool_call_id",
            param=f"{where}.role",
        )
    if role not in ROLES:
        raise InvalidRequest(
            f"{where}.role must be one of {', '.join(ROLES)}, not {show(role)}", param=f"{where}.role"
        )
    message: Message = {"role": "system" if role == "developer" else role}
    message["content"] = _content(
        f"{where}.content", given.pop("content", None), optional=bool(_INSTEAD.intersection(given)), role=role
    )
    if role == "tool" and "tool_call_id" not in given:
        raise InvalidRequest(f"{where}.tool_call_id is missing", param=f"{where}.tool_call_id")
    for key, item in given.items():
        if key == "name" or (key == "tool_call_id" and role == "tool"):
            message[key] = bounds.text(f"{where}.{key}", item, max_chars=bounds.MAX_NAME_CHARS)
        elif key == "reasoning_content" and role == "assistant":
            message[key] = bounds.text(f"{where}.{key}", item)
        elif key == "tool_calls" and role == "assistant":
            if calls := _tool_calls(f"{where}.{key}", item):
                message[key] = calls
        elif key not in _NO_OPS:
            raise UnsupportedParameter(
                f"{where} has {show(key)}, which is not supported there", param=f"{where}.{key[:64]}"
            )
    return message


def _content(where: str, value: object, *, optional: bool, role: str) -> str | list[object]:
    if value is None:
        if optional and role == "assistant":
            return ""
        raise InvalidRequest(f"{where} is missing", param=where)
    if isinstance(value, str):
        return bounds.text(where, value)
    if not isinstance(value, list):
        raise InvalidRequest(
            f"{where} must be a string or a list of text parts, not {show(value)}", param=where
        )
    if not 1 <= len(value) <= bounds.MAX_PARTS:
        raise InvalidRequest(
            f"{where} must have from 1 to {bounds.MAX_PARTS} parts, not {len(value)}", param=where
        )
    kinds = ("text", "refusal") if role == "assistant" else ("text",)
    return [_part(f"{where}[{number}]", part, kinds) for number, part in enumerate(value)]


def _part(where: str, value: object, kinds: Sequence[str]) -> dict[str, object]:
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, not {show(value)}", param=where)
    kind = value.get("type")
    if not isinstance(kind, str) or kind not in kinds:
        raise UnsupportedParameter(
            f"{where}.type must be {' or '.join(kinds)}, not {show(kind)}: this model reads text only",
            param=f"{where}.type",
        )
    part = known_members(where, value, {"type", kind, *_PART_NO_OPS})
    return {"type": kind, kind: bounds.text(f"{where}.{kind}", part.get(kind))}


def flat_content(message: Mapping[str, object]) -> str:
    """A checked message's content as one string; parts are joined by newlines."""
    content = message["content"]
    if isinstance(content, str):
        return content
    parts = content if isinstance(content, list) else []
    return "\n".join(part[part["type"]] for part in parts)


def _tool_calls(where: str, value: object) -> list[object]:
    """Calls of earlier turns, for the template to write down again."""
    if not isinstance(value, list) or len(value) > bounds.MAX_TOOL_CALLS:
        raise InvalidRequest(
            f"{where} must be a list of at most {bounds.MAX_TOOL_CALLS} objects", param=where
        )
    return [_tool_call(f"{where}[{number}]", call) for number, call in enumerate(value)]


def _tool_call(where: str, value: object) -> dict[str, object]:
    call = known_members(where, value, {"id", "type", "function", "index"})
    if call.get("type", "function") != "function":
        raise UnsupportedParameter(
            f"{where}.type must be function, not {show(call['type'])}", param=f"{where}.type"
        )
    function = known_members(f"{where}.function", call.get("function"), {"name", "arguments"})
    return {
        "id": bounds.text(f"{where}.id", call.get("id"), max_chars=bounds.MAX_NAME_CHARS),
        "type": "function",
        "function": {
            "name": short_name(f"{where}.function.name", function.get("name")),
            "arguments": bounds.text(f"{where}.function.arguments", function.get("arguments")),
        },
    }
