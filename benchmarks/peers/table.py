"""The results as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.peers.results import Line
from tokenmill.bench.report import table

_UNITS = {
    "tokens_per_s": ("tok/s", 1.0),
    "ttft_p50_s": ("TTFT P50 (s)", 1.0),
    "ttft_p99_s": ("TTFT P99 (s)", 1.0),
    "gap_p50_s": ("gap P50 (ms)", 1e3),
    "gap_p99_s": ("gap P99 (ms)", 1e3),
}
NONE = "-"


def render(found: Sequence[Line], ours: str) -> str:
    """One line a row and metric, then what failed and why."""
    rivals = list(dict.fromkeys(name for line in found for name in line.contenders if name != ours))
    header = ["", ours, "best rival", "ratio", "target", "of limit", *rivals]
    body = [
        [
            f"{line.row} {_UNITS[line.metric][0]}",
            _value(line.metric, line.ours),
            line.best_rival or NONE,
            _number(line.ratio, ".2f"),
            _target(line),
            _number(line.fractions.get("limit"), ".0%"),
            *(_cell(line, name) for name in rivals),
        ]
        for line in found
    ]
    failures = _failures(found)
    return "\n".join([table(header, body), *(["", *failures] if failures else [])])


def _value(metric: str, value: float | None) -> str:
    if value is None:
        return NONE
    number = value * _UNITS[metric][1]
    return f"{number:.1f}" if number >= 10 else f"{number:.2f}"


def _number(value: float | None, form: str) -> str:
    return NONE if value is None else format(value, form)


def _target(line: Line) -> str:
    if line.target is None:
        return NONE
    sign = ">=" if line.metric == "tokens_per_s" else "<="
    verdict = "" if line.met is None else " met" if line.met else " missed"
    return f"{sign} {line.target:g}{verdict}"


def _cell(line: Line, name: str) -> str:
    cell = line.contenders.get(name)
    if cell is None:
        return NONE
    return "failed" if cell.failed and cell.median is None else _value(line.metric, cell.median)


def _failures(found: Sequence[Line]) -> list[str]:
    """Each reason once, with the rows it is of and how many rounds were done in spite of it."""
    rows: dict[tuple[str, str], list[str]] = {}
    for line in found:
        if line.metric != "tokens_per_s":
            continue
        for name, cell in line.contenders.items():
            if cell.failed:
                done = f" ({len(cell.rounds)} rounds done)" if cell.rounds else ""
                rows.setdefault((name, cell.failed), []).append(line.row + done)
    return [f"{name}, {', '.join(where)}: {reason}" for (name, reason), where in rows.items()]
