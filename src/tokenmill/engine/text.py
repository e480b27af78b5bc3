"""Tokens' bytes to text that may be shown: a pure state machine, used by streaming and not.

It holds back two things only: the beginning of a UTF-8 character, and text that may yet become a stop
string. Whatever way the bytes are cut, the concatenated output is the same.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterable


class TextStream:
    """Turns bytes into text up to the first stop string.

    The stop string that is completed first ends the text; of several completed by the same character
    the longest counts. The text ends before it.

    Attributes:
        decoded: characters decoded so far, held ones and the stop string included.
        released: characters handed out so far.
        stop: the stop string that ended the text, or None.
    """

    def __init__(self, stops: Iterable[str] = ()) -> None:
        self._stops = tuple(stops)
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._held = ""
        self.decoded = 0
        self.released = 0
        self.stop: str | None = None

    @property
    def midway(self) -> bool:
        """Whether bytes of an unfinished character are held."""
        return bool(self._decoder.getstate()[0])

    def push(self, data: bytes, *, may_stop: bool = True) -> str:
        """Takes bytes, returns the text they release. After a stop it takes no more.

        Args:
            may_stop: when False, stop strings within this text do not count.
        """
        return self._release(self._decoder.decode(data), may_stop=may_stop)

    def finish(self) -> str:
        """Ends the stream: an unfinished character becomes U+FFFD, held text is released."""
        tail = self._release(self._decoder.decode(b"", final=True), may_stop=True)
        if self.stop is None:
            tail += self._held
            self.released += len(self._held)
            self._held = ""
        return tail

    def _release(self, text: str, *, may_stop: bool) -> str:
        if self.stop is not None:
            return ""
        self.decoded += len(text)
        if not may_stop:
            out, self._held = self._held + text, ""
        else:
            out = self._until_stop(self._held + text)
        self.released += len(out)
        return out

    def _until_stop(self, text: str) -> str:
        found = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            _, at, self.stop = min(found)
            self._held = ""
            return text[:at]
        keep = self._possible_stop(text)
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]

    def _possible_stop(self, text: str) -> int:
        """Length of the longest end of `text` that begins a stop string."""
        longest = min(len(text), max(map(len, self._stops), default=1) - 1)
        for size in range(longest, 0, -1):
            end = text[-size:]
            if any(len(stop) > size and stop.startswith(end) for stop in self._stops):
                return size
        return 0
