"""How a family of models writes tool calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Syntax:
    """The text around and inside calls. A reader looks for the markers; a grammar prescribes all of it.

    An answer's calls are `before`, calls joined by `between`, `after`; one call is `head` with the
    function's name in place of `{name}`, its arguments as a JSON object, and `tail`.

    Attributes:
        open: marker that begins calls.
        close: marker that ends them, empty when there is none.
        other_markers: further markers inside calls.
        id_marker: marker before an id that the model may give a call, after the name.
        bare: an answer that begins with `{` is a call too.
    """

    open: str
    before: str
    between: str
    after: str
    head: str = '{"name": "{name}", "arguments": '
    tail: str = "}"
    close: str = ""
    other_markers: tuple[str, ...] = ()
    id_marker: str = ""
    bare: bool = False

    @property
    def markers(self) -> tuple[str, ...]:
        return tuple(filter(None, (self.open, self.close, self.id_marker, *self.other_markers)))

    @property
    def call_is_object(self) -> bool:
        """Whether a call is one JSON object; otherwise the name stands before its arguments."""
        return self.head.startswith('{"')

    def call(self, name: str, arguments: str) -> str:
        """One call as the model writes it."""
        return self.head.replace("{name}", name) + arguments + self.tail

    def answer(self, calls: Iterable[tuple[str, str]]) -> str:
        """All calls of an answer, as names and arguments."""
        return self.before + self.between.join(self.call(*call) for call in calls) + self.after

    def special(self, special_tokens: Mapping[str, int]) -> dict[str, int]:
        """The markers that are special tokens of this tokenizer, with their ids; others are plain text."""
        return {marker: special_tokens[marker] for marker in self.markers if marker in special_tokens}
