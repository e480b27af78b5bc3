"""A model's text to content and tool calls, piece by piece.

The result is the same however the text is cut. Held back is only what may yet turn out to belong to a call:
the beginning of a marker, white space before it, and a call up to the start of its arguments. Text that is
no call after all is content, markers included; a call that ends before its arguments is dropped and told.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection
from dataclasses import dataclass

import msgspec

from tokenmill.gateway.text_marks import SPACE, partial
from tokenmill.gateway.tools.json_end import ObjectEnd
from tokenmill.gateway.tools.syntax import Syntax


@dataclass(frozen=True)
class Content:
    """Text for the user."""

    text: str


@dataclass(frozen=True)
class CallStarted:
    """The model calls a function; calls are numbered from 0."""

    index: int
    name: str


@dataclass(frozen=True)
class Arguments:
    """More of a call's arguments, as the model wrote them."""

    index: int
    text: str


Event = Content | CallStarted | Arguments

_Step = Callable[[list[Event]], bool]

_NO_NAME = frozenset("{}()<>\"'")
_MAX_HEAD = 256
_OBJECT_HEAD = re.compile(
    r'\{[ \t\r\n]*"name"[ \t\r\n]*:[ \t\r\n]*"([a-zA-Z0-9_-]{1,64})"[ \t\r\n]*,'
    r'[ \t\r\n]*"(?:arguments|parameters)"[ \t\r\n]*:[ \t\r\n]*(?=\{)'
)
_NAME_HEAD = re.compile(
    r"([a-zA-Z0-9_-]{1,64})(?:\[CALL_ID\][a-zA-Z0-9]{0,64})?(?:\[ARGS\])?[ \t\r\n]*(?=\{)"
)


class ToolCallParser:
    """Reads one choice of an answer.

    Attributes:
        calls: how many calls have begun.
        cut: the text ended inside a call, or before the one that is required; known after `finish`.
    """

    def __init__(self, syntax: Syntax, names: Collection[str], *, required: bool = False) -> None:
        """`names` are the functions that may be called; a call of any other is content."""
        self.calls = 0
        self.cut = False
        self._required = required
        self._syntax = syntax
        self._names = frozenset(names)
        # What may stand around the calls of a list.
        self._layout = "".join({*SPACE, *"[],;"} - {syntax.close})
        self._step: _Step = self._begin if syntax.bare else self._text
        self._next: _Step = self._text  # after the arguments
        self._held = ""
        self._raw = ""  # taken from the text since the marker; content again if no call follows
        self._called = False  # since the marker
        self._after_call = False
        self._call = ObjectEnd()
        self._arguments = ObjectEnd()
        self._scanned = 0  # characters of the held text that `_call` has seen

    def feed(self, text: str) -> list[Event]:
        """Takes the next piece of text."""
        self._held += text
        events: list[Event] = []
        while self._step(events):
            pass
        return events

    def finish(self) -> list[Event]:
        """The text has ended: what is held is content, unless it belongs to a call, or to its cut head."""
        rest = self._raw + self._held
        self.cut = self._ends_in_call()
        behind = self._step in (self._between, self._after_arguments, self._skip_members) or (
            self._after_call and not rest.strip(SPACE)
        )
        self._held = self._raw = ""
        return [] if self._required or self.cut or behind or not rest else [Content(rest)]

    def _ends_in_call(self) -> bool:
        if self._step == self._in_arguments:
            return True
        if self._step == self._between:
            return not self._called or self._syntax.open in self._raw
        if self._step in (self._object_head, self._name_head):
            # Without a marker, this is what no other text begins with.
            bare = self._held.startswith(self._syntax.head.partition("{name}")[0])
            return self._called or self._required or bare or self._syntax.open in self._raw
        return self._required and self.calls == 0

    # Each step takes from the held text what it can, and says whether another should follow.

    def _begin(self, events: list[Event]) -> bool:
        text = self._held.lstrip(SPACE)
        if not text:
            return False
        if text[0] == "{":
            self._raw, self._held = self._held[: -len(text)], text
            self._enter_call()
        else:
            self._step = self._text
        return True

    def _text(self, events: list[Event]) -> bool:
        if self._after_call:
            self._held = self._held.lstrip(SPACE)
        marker = self._syntax.open
        at = self._held.find(marker)
        end = at if at >= 0 else len(self._held) - partial(self._held, marker)
        self._say(self._held[:end].rstrip(SPACE), events, taken=True)
        if at < 0:
            return False
        end = self._held.find(marker) + len(marker)
        self._raw, self._held = self._held[:end], self._held[end:]
        self._called = False
        self._step = self._between
        return True

    def _between(self, events: list[Event]) -> bool:
        """After the marker, or after a call: a call follows, or the end of calls, or no call at all."""
        self._take(len(self._held) - len(self._held.lstrip(self._layout)))
        open_, close, held = self._syntax.open, self._syntax.close, self._held
        if close and held.startswith(close):
            self._take(len(close))
            self._leave(events)
        elif held.startswith(open_):
            self._take(len(open_))
        elif close.startswith(held) or open_.startswith(held):
            return False
        elif held[0] == "{" if self._syntax.call_is_object else held[0] not in _NO_NAME:
            self._enter_call()
        else:
            self._leave(events)
        return True

    def _object_head(self, events: list[Event]) -> bool:
        head = _OBJECT_HEAD.match(self._held, 0, _MAX_HEAD)
        if head is not None:
            self._begin_call(head, events, self._after_arguments)
            return True
        end = self._call.find(self._held[self._scanned :])
        if end is None:
            self._scanned = len(self._held)
            return False
        end += self._scanned
        call = _whole_call(self._held[:end])
        if call is None or call[0] not in self._names:
            self._leave(events)
            return True
        self._raw, self._held = "", self._held[end:]
        self._start(call[0], events)
        events.append(Arguments(self.calls - 1, call[1]))
        self._step = self._between
        return True

    def _name_head(self, events: list[Event]) -> bool:
        brace = self._held.find("{")
        if brace < 0 and len(self._held) <= _MAX_HEAD:
            return False
        head = _NAME_HEAD.match(self._held) if 0 <= brace <= _MAX_HEAD else None
        if head is None:
            self._leave(events)
        else:
            self._begin_call(head, events, self._text)
        return True

    def _in_arguments(self, events: list[Event]) -> bool:
        end = self._arguments.find(self._held)
        piece = self._held if end is None else self._held[:end]
        if piece:
            events.append(Arguments(self.calls - 1, piece))
        self._held = self._held[len(piece) :]
        if end is None:
            return False
        self._step = self._next
        return True

    def _after_arguments(self, events: list[Event]) -> bool:
        self._held = self._held.lstrip(SPACE)
        if not self._held:
            return False
        if self._held[0] == ",":
            self._step = self._skip_members
        else:  # the brace that closes the call, or none
            self._held = self._held.removeprefix("}")
            self._step = self._between
        return True

    def _skip_members(self, events: list[Event]) -> bool:
        """Members after the arguments say nothing."""
        end = self._call.find(self._held)
        self._held = "" if end is None else self._held[end:]
        if end is None:
            return False
        self._step = self._between
        return True

    def _enter_call(self) -> None:
        self._call, self._scanned = ObjectEnd(), 0
        self._step = self._object_head if self._syntax.call_is_object else self._name_head

    def _begin_call(self, head: re.Match[str], events: list[Event], following: _Step) -> None:
        if head[1] not in self._names:
            self._leave(events)
            return
        self._raw, self._held = "", self._held[head.end() :]
        self._start(head[1], events)
        self._call, self._arguments = ObjectEnd(depth=1), ObjectEnd()
        self._step, self._next = self._in_arguments, following

    def _start(self, name: str, events: list[Event]) -> None:
        events.append(CallStarted(self.calls, name))
        self.calls += 1
        self._called = self._after_call = True

    def _leave(self, events: list[Event]) -> None:
        """Back to text. What was taken since the marker is content if no call came of it."""
        if not self._called:
            self._say(self._raw, events)
        self._raw = ""
        self._step = self._text

    def _take(self, size: int) -> None:
        self._raw += self._held[:size]
        self._held = self._held[size:]

    def _say(self, text: str, events: list[Event], *, taken: bool = False) -> None:
        if text:
            events.append(Content(text))
            self._after_call = False
        if taken:
            self._held = self._held[len(text) :]


def _whole_call(text: str) -> tuple[str, str] | None:
    """Name and arguments of a call whose members come in another order, or whose arguments are a string."""
    try:
        call = msgspec.json.decode(text)
        name = call["name"]
        if not isinstance(name, str):
            return None
        arguments = call.get("arguments", call.get("parameters", {}))
        if isinstance(arguments, str):
            return (name, arguments) if isinstance(msgspec.json.decode(arguments), dict) else None
        return (name, msgspec.json.encode(arguments).decode()) if isinstance(arguments, dict) else None
    except (msgspec.DecodeError, RecursionError, KeyError):
        return None
