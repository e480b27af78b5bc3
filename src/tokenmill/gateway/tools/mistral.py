"""Calls as Mistral models write them, in their two generations, and the ids their templates accept."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence

from tokenmill.gateway.tools.syntax import Syntax

# One JSON list of calls.
LISTED = Syntax(open="[TOOL_CALLS]", close="]", before="[TOOL_CALLS][", between=", ", after="]")
# A marker before each call, and the name outside its JSON.
NAMED = Syntax(
    open="[TOOL_CALLS]",
    before="[TOOL_CALLS]",
    between="[TOOL_CALLS]",
    after="",
    head="{name}[ARGS]",
    tail="",
    other_markers=("[ARGS]",),
    id_marker="[CALL_ID]",
)

_ID = re.compile(r"[a-zA-Z0-9]{9}")


def with_short_ids(messages: Sequence[Mapping[str, object]]) -> list[Mapping[str, object]]:
    """The messages with ids of calls as the templates demand them: nine letters and digits."""
    return [_message(message) for message in messages]


def _message(message: Mapping[str, object]) -> Mapping[str, object]:
    changed = dict(message)
    if isinstance(answered := message.get("tool_call_id"), str):
        changed["tool_call_id"] = short_id(answered)
    if isinstance(calls := message.get("tool_calls"), list):
        changed["tool_calls"] = [{**call, "id": short_id(call["id"])} for call in calls]
    return changed


def short_id(call_id: str) -> str:
    """The id itself where it has the form; otherwise one that follows from it alone."""
    if _ID.fullmatch(call_id):
        return call_id
    return hashlib.sha256(call_id.encode()).hexdigest()[:9]
