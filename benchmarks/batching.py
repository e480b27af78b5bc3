"""Static against continuous batching: the same mixed requests through both, in turn, on this machine.

    python benchmarks/batching.py [--json]

Both servers run the same model with the same limits; only `--batching` differs. Each round sends its own
prompts (the same ones to both), all at once, so that no prefix cache answers them.

- tokens/s: output tokens over the time from the first request sent to the last one ended.
- rows filled: sampled tokens a step over --max-num-seqs: how full the batch was.
- computing: share of the time in which the engine was in a step.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from contextlib import AsyncExitStack
from dataclasses import dataclass

import msgspec

from tokenmill.bench.arrivals import Closed
from tokenmill.bench.client import run_load
from tokenmill.bench.distribution import parse
from tokenmill.bench.engine_work import EngineWork, read_engine_work
from tokenmill.bench.plan import LoadPlan
from tokenmill.bench.process import ServerProcess, tokenmill_command
from tokenmill.bench.report import table
from tokenmill.bench.summary import Summary
from tokenmill.bench.workload import Workload

MODES = ("static", "continuous")


@dataclass(frozen=True)
class Round:
    """One batch of requests through one server."""

    mode: str
    seconds: float
    failed: int
    prompt_tokens: int
    output_tokens: int
    ttft_p50_s: float
    e2e_p50_s: float
    work: EngineWork


@dataclass(frozen=True)
class Result:
    """All rounds of one mode together."""

    mode: str
    tokens_per_s: float
    total_tokens_per_s: float
    rows_filled: float
    computing: float
    tokens_per_step: float
    ttft_p50_s: float
    e2e_p50_s: float
    failed: int


async def measure(options: argparse.Namespace) -> list[Round]:
    rounds: list[Round] = []
    async with AsyncExitStack() as stack:
        servers = {
            mode: await stack.enter_async_context(ServerProcess(command(options, mode))) for mode in MODES
        }
        for server in servers.values():
            await run_load(plan(options, server, seed=options.seed - 1, requests=1))
        for number in range(options.rounds):
            # The order alternates, so that a machine growing slower or faster favours neither.
            for mode in MODES if number % 2 == 0 else reversed(MODES):
                rounds.append(await one_round(options, servers[mode], mode, number))
                say(f"round {number + 1} of {options.rounds}, {mode}: {rounds[-1].seconds:.1f} s")
    return rounds


async def one_round(options: argparse.Namespace, server: ServerProcess, mode: str, number: int) -> Round:
    before = await read_engine_work(server.url)
    load = plan(options, server, seed=options.seed + number, requests=options.requests)
    summary = (await run_load(load)).summarize()
    return condense(mode, summary, (await read_engine_work(server.url)).since(before))


def condense(mode: str, summary: Summary, work: EngineWork) -> Round:
    def median(metric: str) -> float:
        return summary.metrics[metric].quantiles["p50"].value if metric in summary.metrics else float("nan")

    return Round(
        mode=mode,
        seconds=summary.duration_s,
        failed=summary.failed,
        prompt_tokens=summary.prompt_tokens,
        output_tokens=summary.output_tokens,
        ttft_p50_s=median("ttft_any_from_send"),
        e2e_p50_s=median("e2e_from_send"),
        work=work,
    )


def combine(mode: str, rounds: list[Round], max_num_seqs: int) -> Result:
    mine = [one for one in rounds if one.mode == mode]
    seconds = sum(one.seconds for one in mine)
    output = sum(one.output_tokens for one in mine)
    prompt = sum(one.prompt_tokens for one in mine)
    steps = sum(one.work.steps for one in mine)
    return Result(
        mode=mode,
        tokens_per_s=output / seconds,
        total_tokens_per_s=(prompt + output) / seconds,
        rows_filled=sum(one.work.generated_tokens for one in mine) / steps / max_num_seqs,
        computing=sum(one.work.busy_s for one in mine) / seconds,
        tokens_per_step=sum(one.work.computed_tokens for one in mine) / steps,
        ttft_p50_s=sum(one.ttft_p50_s for one in mine) / len(mine),
        e2e_p50_s=sum(one.e2e_p50_s for one in mine) / len(mine),
        failed=sum(one.failed for one in mine),
    )


def ratios(rounds: list[Round]) -> list[float]:
    """Tokens/s of continuous over static, round by round: the two of a round ran next to each other."""
    rate = {mode: [one.output_tokens / one.seconds for one in rounds if one.mode == mode] for mode in MODES}
    return [ours / theirs for theirs, ours in zip(rate["static"], rate["continuous"], strict=True)]


def command(options: argparse.Namespace, mode: str) -> list[str]:
    return tokenmill_command(options.model, "--batching", mode, "--max-num-seqs", str(options.max_num_seqs))


def plan(options: argparse.Namespace, server: ServerProcess, *, seed: int, requests: int) -> LoadPlan:
    return LoadPlan(
        server.url,
        Closed(users=requests),
        Workload(parse(options.prompt_tokens), parse(options.output_tokens), seed=seed, token_ids=True),
        api="completions",
        model=server.model,
        max_requests=requests,
        max_seconds=options.timeout,
        timeout_s=options.timeout,
    )


def show(results: list[Result], options: argparse.Namespace) -> str:
    static, continuous = results
    rows = [
        ["output tokens/s", "tokens_per_s", ".1f"],
        ["prompt + output tokens/s", "total_tokens_per_s", ".1f"],
        [f"rows filled (of {options.max_num_seqs})", "rows_filled", ".1%"],
        ["computing", "computing", ".1%"],
        ["tokens a step", "tokens_per_step", ".1f"],
        ["TTFT p50 (s)", "ttft_p50_s", ".2f"],
        ["E2E p50 (s)", "e2e_p50_s", ".2f"],
        ["failed", "failed", "d"],
    ]
    lines = []
    for label, name, form in rows:
        a, b = getattr(static, name), getattr(continuous, name)
        lines.append([label, format(a, form), format(b, form), f"{b / a:.2f}" if a else ""])
    return table(["", *MODES, "ratio"], lines)


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0] if __doc__ else None)
    parser.add_argument("--model", default="smollm2-135m-instruct")
    parser.add_argument("--requests", type=int, default=64, help="a round, all sent at once")
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--max-num-seqs", type=int, default=16)
    parser.add_argument("--prompt-tokens", default="uniform:10:1500")
    parser.add_argument("--output-tokens", default="uniform:1:200")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--timeout", type=float, default=3600.0, help="seconds a round may take")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    rounds = asyncio.run(measure(options))
    results = [combine(mode, rounds, options.max_num_seqs) for mode in MODES]
    if options.json:
        document = {
            "options": vars(options),
            "results": results,
            "tokens_per_s_ratios": ratios(rounds),
            "rounds": rounds,
        }
        print(msgspec.json.encode(document).decode())
    else:
        print(show(results, options))
        print("\ntokens/s ratio, round by round:", " ".join(f"{one:.2f}" for one in ratios(rounds)))
    return 1 if any(one.failed for one in results) else 0


if __name__ == "__main__":
    sys.exit(main())
