"""Messages over a pipe: four bytes of length, big-endian, and the message."""

from __future__ import annotations

import os
import select
import time


def write_frame(descriptor: int, data: bytes, deadline: float | None = None) -> None:
    """Writes all of a message.

    Args:
        deadline: monotonic seconds; None waits for as long as it takes.

    Raises:
        TimeoutError: the other side did not take it in time.
        OSError: nobody reads any more.
    """
    rest = memoryview(len(data).to_bytes(4, "big") + data)
    while rest:
        _await(descriptor, select.POLLOUT, deadline)
        rest = rest[os.write(descriptor, rest[: select.PIPE_BUF]) :]  # so much never blocks


def read_frame(descriptor: int, deadline: float | None = None) -> bytes | None:
    """The next message; None when the other side has closed or died.

    Raises:
        TimeoutError: it did not come in time.
    """
    head = _read(descriptor, 4, deadline)
    return None if head is None else _read(descriptor, int.from_bytes(head, "big"), deadline)


def _read(descriptor: int, count: int, deadline: float | None) -> bytes | None:
    parts = []
    while count:
        _await(descriptor, select.POLLIN, deadline)
        part = os.read(descriptor, count)
        if not part:
            return None
        parts.append(part)
        count -= len(part)
    return b"".join(parts)


def _await(descriptor: int, event: int, deadline: float | None) -> None:
    poll = select.poll()
    poll.register(descriptor, event)
    left = None if deadline is None else max(0.0, deadline - time.monotonic()) * 1000
    if not poll.poll(left):
        raise TimeoutError
