"""The part of a run in which the load was steady, and the tokens that came in it."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from tokenmill.bench.record import Record

WARMUP_SHARE = 0.1
LEAST_SHARE = 0.1


class Window(msgspec.Struct, frozen=True):
    """From `start_s` to `end_s` of the run; where not `steady`, all of it with ramp and tail."""

    start_s: float
    end_s: float
    steady: bool
    output_tokens: float
    output_tokens_per_s: float


def steady_window(records: Sequence[Record], *, warmup_s: float | None = None) -> Window:
    """From `warmup_s` (default: a tenth of the sending time) in, to the last request sent.

    Behind the last send the load only falls. A window shorter than a tenth of the run, as when all is sent at
    once, shows no steady state.
    """
    sent = [r.sent for r in records if r.sent is not None]
    ends = [r.end for r in records if r.end is not None]
    if not sent or not ends:
        return Window(0.0, 0.0, False, 0.0, 0.0)
    first, last, end = min(sent), max(sent), max(ends)
    start = first + ((last - first) * WARMUP_SHARE if warmup_s is None else warmup_s)
    if last - start > (end - first) * LEAST_SHARE:
        return _counted(records, start, last, steady=True)
    return _counted(records, first, end, steady=False)


def _counted(records: Sequence[Record], start: float, end: float, *, steady: bool) -> Window:
    tokens = sum(tokens_within(record, start, end) for record in records)
    return Window(start, end, steady, tokens, tokens / (end - start) if end > start else 0.0)


def tokens_within(record: Record, start: float, end: float) -> float:
    """Tokens that came in [start, end].

    Frames share the server's count evenly; the tokens of a whole answer come at its end.
    """
    if record.token_times:
        inside = sum(start <= at <= end for at in record.token_times)
        return inside * record.tokens / len(record.token_times)
    return float(record.tokens) if record.end is not None and start <= record.end <= end else 0.0
