"""What one answer does and when: a plain sequence of actions, faults included."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tokenmill.bench.mock_script import MockScript, token_times


@dataclass(frozen=True)
class Action:
    """`due` is seconds from getting a slot; `tokens` counts those of this action alone.

    `stall` with `due` None never ends.
    """

    kind: Literal["tokens", "malformed", "stall", "error", "reset", "end"]
    due: float | None
    tokens: int = 0


def timeline(script: MockScript, length: int, rng: random.Random) -> Iterator[Action]:
    """The actions of an answer of `length` tokens; the last one is error, reset or end.

    A chunk leaves when its last token is made, and no chunk reaches over a fault. An error or a reset comes
    when the next token would be due.
    """
    times = token_times(script, rng)
    borders = [
        at
        for at in (script.stall_after, script.reset_after, script.error_after, script.malformed_after)
        if at is not None
    ]
    last = stalled = 0.0
    out = 0
    while True:
        if out == script.stall_after and stalled == 0.0:
            if script.stall_s is None:
                yield Action("stall", None)
                return
            stalled = script.stall_s
            yield Action("stall", last + stalled)
            last += stalled
        if out == script.reset_after:
            yield Action("reset", next(times) + stalled)
            return
        if out == script.error_after:
            yield Action("error", next(times) + stalled)
            return
        if out >= length:
            yield Action("end", last)
            return
        stop = min([length, out + script.tokens_per_chunk, *(at for at in borders if at > out)])
        for _ in range(stop - out):
            due = next(times)
        last = due + stalled
        yield Action("malformed" if out == script.malformed_after else "tokens", last, stop - out)
        out = stop
