"""Tokens a second at rising numbers of streams, each sending its next request when the last one has ended.

    python benchmarks/streams.py [--json] [--url http://127.0.0.1:8000]

Without --url it starts `tokenmill serve` for the time of the run. Prompts are random token ids, so that no
prefix cache answers them.

- tokens/s: output tokens over the time from the first request sent to the last one ended.
- a stream: 1 / median TPOT, what one reader sees between first and last token.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from tokenmill.bench.arrivals import Closed
from tokenmill.bench.asking import first_model
from tokenmill.bench.client import run_load
from tokenmill.bench.distribution import parse
from tokenmill.bench.plan import LoadPlan
from tokenmill.bench.process import ServerProcess, tokenmill_command
from tokenmill.bench.report import table
from tokenmill.bench.workload import Workload


@dataclass(frozen=True)
class Level:
    """One number of streams."""

    streams: int
    requests: int
    failed: int
    seconds: float
    tokens_per_s: float
    stream_tokens_per_s: float
    ttft_p50_s: float
    ttft_p95_s: float
    itl_p95_s: float


async def measure(options: argparse.Namespace) -> list[Level]:
    async with AsyncExitStack() as stack:
        url, model = options.url, options.served_model
        if not url:
            server = await stack.enter_async_context(ServerProcess(tokenmill_command(options.model)))
            url, model = server.url, server.model
        elif not model:
            model = await first_model(url, {})
        await one_level(options, url, model, 1, requests=1)
        return [
            await one_level(options, url, model, streams, requests=streams * options.requests_per_stream)
            for streams in options.streams
        ]


async def one_level(
    options: argparse.Namespace, url: str, model: str, streams: int, *, requests: int
) -> Level:
    workload = Workload(
        parse(options.prompt_tokens),
        parse(options.output_tokens),
        seed=options.seed + 1000 * streams + requests,
        token_ids=True,
    )
    plan = LoadPlan(
        url,
        Closed(users=streams),
        workload,
        api="completions",
        model=model,
        max_requests=requests,
        max_seconds=options.timeout,
        timeout_s=options.timeout,
    )
    summary = (await run_load(plan)).summarize()

    def seconds(metric: str, share: str) -> float:
        return summary.metrics[metric].quantiles[share].value if metric in summary.metrics else float("nan")

    level = Level(
        streams=streams,
        requests=requests,
        failed=summary.failed,
        seconds=summary.duration_s,
        tokens_per_s=summary.output_tokens_per_s,
        stream_tokens_per_s=1 / seconds("tpot", "p50"),
        ttft_p50_s=seconds("ttft_any_from_send", "p50"),
        ttft_p95_s=seconds("ttft_any_from_send", "p95"),
        itl_p95_s=seconds("itl", "p95"),
    )
    print(f"{streams} streams: {level.tokens_per_s:.1f} tokens/s", file=sys.stderr, flush=True)
    return level


def show(levels: list[Level]) -> str:
    rows = [
        [
            str(one.streams),
            f"{one.tokens_per_s:.1f}",
            f"{one.stream_tokens_per_s:.1f}",
            f"{one.tokens_per_s / levels[0].tokens_per_s:.2f}",
            f"{one.ttft_p50_s:.2f}",
            f"{one.ttft_p95_s:.2f}",
            f"{one.itl_p95_s * 1e3:.0f}",
            str(one.failed),
        ]
        for one in levels
    ]
    header = [
        "streams",
        "tokens/s",
        "a stream",
        "ratio",
        "TTFT p50 (s)",
        "TTFT p95 (s)",
        "ITL p95 (ms)",
        "failed",
    ]
    return table(header, rows)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m-instruct", help="what to serve, without --url")
    parser.add_argument("--url", default="", help="a running server to measure instead")
    parser.add_argument("--served-model", default="", help="with --url: default the first it lists")
    parser.add_argument("--streams", type=int, nargs="+", default=[1, 4, 16, 32])
    parser.add_argument("--requests-per-stream", type=int, default=2)
    parser.add_argument("--prompt-tokens", default="128")
    parser.add_argument("--output-tokens", default="128")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=1800.0, help="seconds a level may take")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    levels = asyncio.run(measure(options))
    if options.json:
        print(msgspec.json.encode({"options": vars(options), "levels": levels}).decode())
    else:
        print(show(levels))
    return 1 if any(one.failed for one in levels) else 0


if __name__ == "__main__":
    sys.exit(main())
