"""From the figures of every round to medians, the best rival of each row, and ratios."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence

import msgspec

from benchmarks.peers.contender import Figures, PeerFailed
from benchmarks.peers.rows import Row

# What a contender did in each round; no entry for rounds it was not asked in.
Rounds = Mapping[str, Sequence[Figures | PeerFailed]]

OFFLINE_METRICS = ("tokens_per_s",)
HTTP_METRICS = ("tokens_per_s", "ttft_p50_s", "ttft_p99_s", "gap_p50_s", "gap_p99_s")
# Latencies must be no worse than the best rival's, whichever rival that is.
_LATENCY_TARGET = 1.0


class Cell(msgspec.Struct, frozen=True, kw_only=True):
    """One contender in one row. `median` is of the rounds it did; `failed` is the first reason it gave."""

    median: float | None
    rounds: list[float]
    failed: str = ""


class Line(msgspec.Struct, frozen=True, kw_only=True):
    """One metric of one row.

    Attributes:
        ratio: ours over the best rival's, None where either is missing. The best has the highest rate, or
            the lowest latency.
        target: least ratio of rates, highest of latencies; None where nothing is promised.
        fractions: of what this machine can do, by name; of rates alone.
    """

    row: str
    metric: str
    ours: float | None
    best_rival: str | None
    best: float | None
    ratio: float | None
    target: float | None
    met: bool | None
    contenders: dict[str, Cell]
    fractions: dict[str, float] = {}


def lines(row: Row, rounds: Rounds, ours: str) -> list[Line]:
    """The lines of a row, by metric. `ours` is the name of our contender."""
    metrics = HTTP_METRICS if row.kind == "http" else OFFLINE_METRICS
    return [_line(row, metric, rounds, ours) for metric in metrics]


def _line(row: Row, metric: str, rounds: Rounds, ours: str) -> Line:
    cells = {name: _cell(seen, metric) for name, seen in rounds.items()}
    found = {name: cell.median for name, cell in cells.items() if name != ours and cell.median is not None}
    rate = metric == "tokens_per_s"
    best_rival = (max if rate else min)(found, key=lambda name: found[name]) if found else None
    best = found[best_rival] if best_rival else None
    mine = cells[ours].median if ours in cells else None
    ratio = mine / best if mine is not None and best else None
    target = row.target if rate else _LATENCY_TARGET if metric.endswith("p99_s") else None
    met = None if ratio is None or target is None else ratio >= target if rate else ratio <= target
    return Line(
        row=row.name,
        metric=metric,
        ours=mine,
        best_rival=best_rival,
        best=best,
        ratio=ratio,
        target=target,
        met=met,
        contenders=cells,
    )


def _cell(seen: Sequence[Figures | PeerFailed], metric: str) -> Cell:
    values = [one[metric] for one in seen if not isinstance(one, PeerFailed)]
    failed = next((str(one) for one in seen if isinstance(one, PeerFailed)), "")
    return Cell(median=statistics.median(values) if values else None, rounds=values, failed=failed)
