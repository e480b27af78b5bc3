"""What a run showed. The definitions, which every figure in the docs uses:

- ttft_any: first token of any channel; ttft_content: first token of the answer itself.
- tpot: (e2e - ttft_any) / (n - 1) of one request; no value for n < 2. ntpot: e2e / n.
- itl: gaps between frames with tokens, of all requests pooled, each divided by the tokens of its frame.
- `_from_schedule` starts at the arrival the load asked for, `_from_send` when this client sent it;
  client_delay is the difference. n is the server's usage, else the number of frames.
- Failed and cancelled requests are in no latency. Failed ones count against goodput; those this client
  cancelled are out of it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec
import numpy as np

from tokenmill.bench.latency import meets, request_latencies, token_gaps
from tokenmill.bench.quantiles import bootstrap_intervals, quantile
from tokenmill.bench.record import Record
from tokenmill.bench.window import Window, steady_window
from tokenmill.core.errors import ConfigError

QUANTILES = {"p50": 0.50, "p90": 0.90, "p95": 0.95, "p99": 0.99}
P99_SAMPLES = 300
METRICS = (
    "ttft_any_from_schedule",
    "ttft_any_from_send",
    "ttft_content_from_schedule",
    "ttft_content_from_send",
    "tpot",
    "itl",
    "ntpot_from_schedule",
    "ntpot_from_send",
    "e2e_from_schedule",
    "e2e_from_send",
    "client_delay",
)
SLO_METRICS = {
    "ttft_any": "ttft_any_from_schedule",
    "ttft_content": "ttft_content_from_schedule",
    "tpot": "tpot",
    "ntpot": "ntpot_from_schedule",
    "e2e": "e2e_from_schedule",
}


class Quantile(msgspec.Struct, frozen=True):
    """A percentile and its 95 % bootstrap interval."""

    value: float
    low: float
    high: float


class Stat(msgspec.Struct, frozen=True):
    """One metric, in seconds."""

    samples: int
    mean: float
    min: float
    max: float
    quantiles: dict[str, Quantile]


class Rate(msgspec.Struct, frozen=True):
    """Requests a second: as scheduled, and as this client really sent them."""

    scheduled: float | None
    sent: float | None


class Goodput(msgspec.Struct, frozen=True):
    """Requests that met every limit of the SLO, of all that were asked for and not cancelled."""

    slo: dict[str, float]
    good: int
    of: int
    share: float
    requests_per_s: float


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """A whole run.

    Attributes:
        requests: sent. unsent: arrivals this client had no room for.
        duration_s: first scheduled to last ended. output_tokens_per_s: tokens received over it.
        steady: the same within the steady window alone.
        itl_exact: share of the gaps whose tokens the server counted itself.
    """

    requests: int
    succeeded: int
    failed: int
    cancelled: int
    unsent: int
    errors: dict[str, int]
    finish_reasons: dict[str, int]
    prompt_tokens: int
    output_tokens: int
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    steady: Window
    rate: Rate
    metrics: dict[str, Stat]
    itl_exact: float | None
    goodput: Goodput | None
    warnings: tuple[str, ...]


def summarize(
    records: Sequence[Record],
    *,
    unsent: int = 0,
    slo: Mapping[str, float] | None = None,
    warmup_s: float | None = None,
    seed: int = 0,
) -> Summary:
    """Condenses records, in any order. `seed` is the bootstrap's. `slo` maps SLO_METRICS to seconds."""
    duration = _duration(records)
    limits = slo_limits(slo) if slo else None
    metrics, exact = _metrics(records, np.random.default_rng(seed))
    rate = Rate(_rate([r.scheduled for r in records]), _rate([r.sent for r in records if r.sent is not None]))
    tokens = sum(r.tokens for r in records)
    steady = steady_window(records, warmup_s=warmup_s)
    return Summary(
        requests=len(records),
        succeeded=sum(r.ok for r in records),
        failed=sum(r.error is not None for r in records),
        cancelled=sum(r.cancelled for r in records),
        unsent=unsent,
        errors=dict(Counter(r.error for r in records if r.error is not None)),
        finish_reasons=dict(Counter(r.finish_reason for r in records if r.finish_reason is not None)),
        prompt_tokens=sum(r.prompt_tokens or 0 for r in records),
        output_tokens=tokens,
        duration_s=duration,
        requests_per_s=_per(sum(r.ok for r in records), duration),
        output_tokens_per_s=_per(tokens, duration),
        steady=steady,
        rate=rate,
        metrics=metrics,
        itl_exact=exact,
        goodput=_goodput(records, unsent, limits, duration) if limits else None,
        warnings=_warnings(records, metrics, rate, steady, unsent),
    )


def slo_limits(slo: Mapping[str, float]) -> dict[str, float]:
    """The limits by the names of the latencies they are held against. Raises ConfigError."""
    for name in slo:
        if name not in SLO_METRICS:
            raise ConfigError(f"an SLO can limit {', '.join(SLO_METRICS)}, not {name!r}")
    return {SLO_METRICS[name]: limit for name, limit in slo.items()}


def stat(values: Sequence[float], groups: Sequence[int], rng: np.random.Generator) -> Stat:
    """Condenses one metric; `groups` says which request each value is of."""
    array = np.asarray(values, dtype=np.float64)
    shares = list(QUANTILES.values())
    intervals = bootstrap_intervals(array, np.asarray(groups, dtype=np.int64), shares, rng=rng)
    quantiles = {
        name: Quantile(quantile(array, share), low, high)
        for (name, share), (low, high) in zip(QUANTILES.items(), intervals, strict=True)
    }
    return Stat(len(array), float(array.mean()), float(array.min()), float(array.max()), quantiles)


def _metrics(records: Sequence[Record], rng: np.random.Generator) -> tuple[dict[str, Stat], float | None]:
    """Every metric that has values, and the share of gaps with the server's own token counts."""
    values: dict[str, list[float]] = {name: [] for name in METRICS}
    groups: dict[str, list[int]] = {name: [] for name in METRICS}
    exact = 0
    for number, record in enumerate(r for r in records if r.ok):
        gaps, counted = token_gaps(record)
        exact += len(gaps) if counted else 0
        values["itl"] += gaps
        groups["itl"] += [number] * len(gaps)
        for name, value in request_latencies(record).items():
            values[name].append(value)
            groups[name].append(number)
    found = {name: stat(values[name], groups[name], rng) for name in METRICS if values[name]}
    return found, exact / len(values["itl"]) if values["itl"] else None


def _goodput(records: Sequence[Record], unsent: int, limits: dict[str, float], duration: float) -> Goodput:
    wanted = [record for record in records if not record.cancelled]
    good = sum(meets(record, limits) for record in wanted)
    of = len(wanted) + unsent
    return Goodput(limits, good, of, good / of if of else 0.0, _per(good, duration))


def _duration(records: Sequence[Record]) -> float:
    ends = [r.end for r in records if r.end is not None]
    return max(ends) - min(r.scheduled for r in records) if ends else 0.0


def _rate(times: Sequence[float]) -> float | None:
    span = max(times) - min(times) if times else 0.0
    return (len(times) - 1) / span if span > 0 else None


def _per(count: float, seconds: float) -> float:
    return count / seconds if seconds > 0 else 0.0


def _warnings(
    records: Sequence[Record], metrics: Mapping[str, Stat], rate: Rate, steady: Window, unsent: int
) -> tuple[str, ...]:
    found: list[str] = []
    few = [name for name, one in metrics.items() if one.samples < P99_SAMPLES]
    if few:
        least = min(metrics[name].samples for name in few)
        found.append(
            f"p99 of {', '.join(few)} rests on as few as {least} samples; under {P99_SAMPLES} it says little"
        )
    if rate.scheduled is not None and rate.sent is not None and rate.sent < 0.95 * rate.scheduled:
        found.append(
            f"sent {rate.sent:.1f} requests/s where {rate.scheduled:.1f} were scheduled: this client or its "
            "limit of requests in flight was the bottleneck"
        )
    if unsent:
        found.append(f"{unsent} arrivals were not sent: too many requests were in flight")
    if not steady.steady:
        found.append("there was no steady window; throughput includes ramp and tail")
    uncounted = sum(r.ok and r.completion_tokens is None for r in records)
    if uncounted:
        found.append(f"{uncounted} answers came without usage; their frames are counted as tokens")
    return tuple(found)
