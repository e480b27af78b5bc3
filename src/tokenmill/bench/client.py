"""The load client: sends a plan's requests at a server and records what comes back.

In a program: `result = await run_load(LoadPlan(url, load=Closed(8)))`, then `result.summarize()`.
As a process: `python -m tokenmill.bench.client --url http://127.0.0.1:8000 --users 8 --requests 200 --json`.
"""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

import msgspec

from tokenmill.bench.arrivals import Closed
from tokenmill.bench.asking import ServerFailed, first_model
from tokenmill.bench.client_options import Options, read_options
from tokenmill.bench.distribution import seeded
from tokenmill.bench.drive import closed_loop, open_loop
from tokenmill.bench.loop import run_loop
from tokenmill.bench.plan import LoadPlan
from tokenmill.bench.record import Record
from tokenmill.bench.report import render
from tokenmill.bench.sender import Sender, open_session
from tokenmill.bench.summary import Summary, summarize
from tokenmill.bench.workload import Item
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import ConfigError


@dataclass(frozen=True)
class LoadResult:
    """The records in the order of their items, and how many arrivals found no room in the client."""

    plan: LoadPlan
    records: list[Record]
    unsent: int

    def summarize(self, *, slo: Mapping[str, float] | None = None, warmup_s: float | None = None) -> Summary:
        return summarize(
            self.records, unsent=self.unsent, slo=slo, warmup_s=warmup_s, seed=self.plan.workload.seed
        )


async def run_load(
    plan: LoadPlan, *, clock: Clock | None = None, on_end: Callable[[Record], None] | None = None
) -> LoadResult:
    """Runs a plan to its end. What servers do wrong is in the records, never raised.

    `on_end` is called with each request as it ends.
    """
    clock = clock or SystemClock()
    items = itertools.islice(plan.workload.items(), plan.max_requests)
    rng = seeded(plan.workload.seed, "load")
    async with open_session() as session:
        started = clock.monotonic()

        def now() -> float:
            return clock.monotonic() - started

        sender = Sender(session, plan, now)

        async def send(item: Item, scheduled: float) -> Record:
            record = await sender.send(item, scheduled)
            if on_end is not None:
                on_end(record)
            return record

        if isinstance(plan.load, Closed):
            records = await closed_loop(plan.load, items, send, now, max_seconds=plan.max_seconds, rng=rng)
            unsent = 0
        else:
            records, unsent = await open_loop(
                plan.load,
                items,
                send,
                now,
                max_seconds=plan.max_seconds,
                max_in_flight=plan.max_in_flight,
                rng=rng,
            )
    return LoadResult(plan, sorted(records, key=lambda record: record.index), unsent)


async def _run(options: Options) -> LoadResult:
    plan = options.plan
    if not plan.model:
        plan = replace(plan, model=await first_model(plan.url, plan.headers))
    return await run_load(plan, on_end=_Progress(plan) if sys.stderr.isatty() else None)


class _Progress:
    """One line on stderr that counts; redrawn at most ten times a second."""

    def __init__(self, plan: LoadPlan) -> None:
        self._plan = plan
        self._ended = 0
        self._drawn = 0.0

    def __call__(self, record: Record) -> None:
        self._ended += 1
        now = time.monotonic()
        if now - self._drawn >= 0.1 or self._ended == self._plan.max_requests:
            self._drawn = now
            sys.stderr.write(f"\r{self._ended} of {self._plan.max_requests} requests ended ")
            sys.stderr.flush()


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when requests were sent and at least one succeeded, 1 otherwise, 2 for wrong options."""
    try:
        options = read_options(arguments)
        result = run_loop(_run(options))
        summary = result.summarize(slo=options.slo, warmup_s=options.warmup_s)
    except (ConfigError, ServerFailed) as error:
        sys.stderr.write(f"error: {error.message}\n")
        return 2 if isinstance(error, ConfigError) else 1
    if sys.stderr.isatty():
        sys.stderr.write("\n")
    if options.json:
        # The headers hold the key.
        document: dict[str, object] = {"plan": replace(result.plan, headers={}), "summary": summary}
        if options.records:
            document["requests"] = result.records
        sys.stdout.write(msgspec.json.encode(document).decode() + "\n")
    else:
        sys.stdout.write(render(summary) + "\n")
    return 0 if summary.succeeded or summary.cancelled else 1


if __name__ == "__main__":
    sys.exit(main())
