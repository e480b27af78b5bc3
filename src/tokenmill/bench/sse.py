"""Reading server-sent events from bytes as they come."""

from __future__ import annotations


class SseDecoder:
    """Turns bytes, cut anywhere, into the data of whole events.

    Follows the WHATWG rules for what model servers send: lines end with LF, CRLF or CR, lines with a
    leading colon are comments, several data lines are joined by LF; event names and ids are skipped.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._data: list[bytes] = []

    def feed(self, received: bytes) -> list[bytes]:
        """The data of the events that `received` completes."""
        buffer = self._rest + received
        if b"\r" in buffer:
            # A CR at the very end may be half of a CRLF.
            held = b"\r" if buffer.endswith(b"\r") else b""
            buffer = buffer[: len(buffer) - len(held)].replace(b"\r\n", b"\n").replace(b"\r", b"\n") + held
        lines = buffer.split(b"\n")
        self._rest = lines.pop()
        events: list[bytes] = []
        for line in lines:
            if not line:
                if self._data:
                    events.append(b"\n".join(self._data))
                    self._data = []
            elif line.startswith(b"data:"):
                self._data.append(line[5:].removeprefix(b" "))
            elif line == b"data":
                self._data.append(b"")
        return events
