"""A summary as text for people."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.bench.summary import QUANTILES, Summary


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Aligned columns, the first to the left and the others to the right."""
    lines = [list(header), *map(list, rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def render(summary: Summary) -> str:
    """The whole summary; latencies in milliseconds, each percentile with its 95 % interval."""
    lines = [
        f"requests {summary.requests}: {summary.succeeded} succeeded, {summary.failed} failed "
        f"{_counts(summary.errors)}, {summary.cancelled} cancelled, {summary.unsent} not sent",
        f"time {summary.duration_s:.2f} s, {summary.requests_per_s:.2f} requests/s, "
        f"{summary.prompt_tokens} prompt tokens, {summary.output_tokens} output tokens",
        f"output {summary.output_tokens_per_s:.1f} tokens/s over the run, "
        + (
            f"{summary.steady.output_tokens_per_s:.1f} in the steady window "
            f"{summary.steady.start_s:.2f}-{summary.steady.end_s:.2f} s"
            if summary.steady.steady
            else "no steady window"
        ),
    ]
    if summary.rate.scheduled is not None and summary.rate.sent is not None:
        lines.append(f"scheduled {summary.rate.scheduled:.2f} requests/s, sent {summary.rate.sent:.2f}")
    if summary.goodput is not None:
        good = summary.goodput
        limits = ", ".join(f"{name} <= {limit:g} s" for name, limit in good.slo.items())
        lines.append(
            f"goodput {good.requests_per_s:.2f} requests/s: {good.good} of {good.of} "
            f"({good.share:.1%}) met {limits}"
        )
    if summary.metrics:
        lines += ["", _latencies(summary)]
    if summary.warnings:
        lines += ["", *(f"warning: {warning}" for warning in summary.warnings)]
    return "\n".join(lines)


def _latencies(summary: Summary) -> str:
    rows = [
        [
            f"{name} (ms)",
            str(one.samples),
            _ms(one.mean),
            *(f"{_ms(q.value)} [{_ms(q.low)}, {_ms(q.high)}]" for q in one.quantiles.values()),
            _ms(one.max),
        ]
        for name, one in summary.metrics.items()
    ]
    return table(["", "samples", "mean", *QUANTILES, "max"], rows)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.2f}" if seconds < 1 else f"{seconds * 1e3:.0f}"


def _counts(counts: dict[str, int]) -> str:
    return "(" + ", ".join(f"{name} {count}" for name, count in counts.items()) + ")" if counts else ""
