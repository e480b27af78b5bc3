"""The load over HTTP: one client for all servers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from benchmarks.peers.contender import Figures, PeerFailed
from benchmarks.peers.prompts import workload
from benchmarks.peers.rows import Row
from benchmarks.peers.window import Arrival
from tokenmill.bench.arrivals import Closed
from tokenmill.bench.asking import ServerFailed, first_model
from tokenmill.bench.client import run_load
from tokenmill.bench.latency import request_latencies, token_gaps
from tokenmill.bench.plan import LoadPlan
from tokenmill.bench.quantiles import quantile
from tokenmill.bench.record import Record

TIMEOUT_S = 300.0


async def load(url: str, row: Row, seed: int) -> Figures:
    """A closed loop of `row.streams` users: tokens a second, time to first token, gaps between tokens.

    Raises:
        PeerFailed: a request failed, or its answer was shorter than asked for.
    """
    records = await ask(url, row, seed)
    latencies = [request_latencies(record) for record in records]
    gaps = np.array([gap for record in records for gap in token_gaps(record)[0]])
    first = np.array([one["ttft_any_from_send"] for one in latencies])
    seconds = max(r.end or 0.0 for r in records) - min(r.scheduled for r in records)
    return {
        "tokens_per_s": sum(record.tokens for record in records) / seconds,
        "ttft_p50_s": quantile(first, 0.50),
        "ttft_p99_s": quantile(first, 0.99),
        "gap_p50_s": quantile(gaps, 0.50),
        "gap_p99_s": quantile(gaps, 0.99),
    }


async def ask(url: str, row: Row, seed: int, *, counted: bool = False) -> list[Record]:
    """Sends a row's requests, after one that warms the server.

    Args:
        counted: ask for a count of tokens with every frame.

    Raises:
        PeerFailed: as `load`.
    """
    try:
        model = await first_model(url, {})
    except ServerFailed as failed:
        raise PeerFailed(failed.message) from None
    plan = LoadPlan(
        url,
        Closed(users=row.streams),
        workload(row, seed),
        api="completions",
        model=model,
        continuous_usage=counted,
        # llama-server ends connections that others keep.
        headers={"connection": "close"},
        max_requests=row.requests,
        max_seconds=TIMEOUT_S,
        timeout_s=TIMEOUT_S,
    )
    await run_load(replace(plan, workload=workload(row, -1 - seed), max_requests=1))
    records = (await run_load(plan)).records
    check(records, row)
    return records


def check(records: Sequence[Record], row: Row) -> None:
    """Raises PeerFailed unless every request was answered in full: a shorter answer is less work."""
    if len(records) != row.requests:
        raise PeerFailed(f"{len(records)} of {row.requests} requests were sent in {TIMEOUT_S:.0f} s")
    for record in records:
        if not record.ok:
            raise PeerFailed(f"a request failed ({record.error}): {record.detail}")
        if record.tokens != row.output_tokens:
            raise PeerFailed(f"an answer has {record.tokens} tokens of {row.output_tokens}")


def arrivals(records: Sequence[Record]) -> list[Arrival]:
    """When tokens came, of answers whose frames were counted."""
    found: list[Arrival] = []
    for stream, record in enumerate(records):
        first = record.tokens - sum(record.gap_tokens)
        tokens = [first, *record.gap_tokens]
        if len(tokens) != len(record.token_times):
            raise PeerFailed("the server did not count the tokens of every frame")
        found += [Arrival(at, stream, n) for at, n in zip(record.token_times, tokens, strict=True)]
    return found
