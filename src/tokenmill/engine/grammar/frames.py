"""Messages over a pipe: four bytes of length, big-endian, and the message."""

from __future__ import annotations

import os


def write_frame(descriptor: int, data: bytes) -> None:
    """Raises OSError when nobody reads any more."""
    rest = memoryview(len(data).to_bytes(4, "big") + data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def read_frame(descriptor: int) -> bytes | None:
    """The next message; None when the other side has closed or died."""
    head = _read(descriptor, 4)
    return None if head is None else _read(descriptor, int.from_bytes(head, "big"))


def _read(descriptor: int, count: int) -> bytes | None:
    parts = []
    while count:
        part = os.read(descriptor, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)
