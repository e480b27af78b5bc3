"""The load client's command line."""

from __future__ import annotations

import argparse
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from tokenmill.bench.arrivals import Closed, Open
from tokenmill.bench.distribution import FORMS, parse
from tokenmill.bench.plan import PATHS, LoadPlan
from tokenmill.bench.summary import SLO_METRICS, slo_limits
from tokenmill.bench.workload import Workload
from tokenmill.core.errors import ConfigError


@dataclass(frozen=True)
class Options:
    """What the command line asks for. `plan.model` is empty when the server is to be asked."""

    plan: LoadPlan
    slo: dict[str, float]
    warmup_s: float | None
    json: bool
    records: bool


def read_options(arguments: Sequence[str] | None = None) -> Options:
    """Raises ConfigError for values that cannot be used; argparse itself exits for unknown flags."""
    chosen = _parser().parse_args(arguments)
    workload = Workload(
        prompt_tokens=parse(chosen.prompt_tokens, name="--prompt-tokens"),
        output_tokens=parse(chosen.output_tokens, name="--output-tokens"),
        seed=chosen.seed,
        shared_prefix=chosen.shared_prefix,
        token_ids=chosen.token_ids,
        vocab_size=chosen.vocab_size,
        prompts=_read_prompts(chosen.prompts) if chosen.prompts else (),
    )
    plan = LoadPlan(
        url=chosen.url.rstrip("/").removesuffix("/v1"),
        load=_load(chosen),
        workload=workload,
        api=chosen.api,
        model=chosen.model,
        stream=chosen.stream,
        usage=chosen.usage,
        continuous_usage=chosen.continuous_usage,
        extra=_json_object(chosen.extra, "--extra"),
        headers={"authorization": f"Bearer {chosen.api_key}"} if chosen.api_key else {},
        max_requests=chosen.requests,
        max_seconds=chosen.seconds,
        timeout_s=chosen.timeout,
        max_in_flight=chosen.max_in_flight,
        cancel_share=chosen.cancel_share,
        cancel_after=chosen.cancel_after,
        keep_text=chosen.records,
    )
    slo = _slo(chosen.slo)
    return Options(plan, slo, chosen.warmup, chosen.json, chosen.records)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tokenmill.bench.client", description="Load an OpenAI-compatible server and measure it."
    )
    add = parser.add_argument
    add("--url", required=True, help="the server, like http://127.0.0.1:8000")
    how = parser.add_mutually_exclusive_group(required=True)
    how.add_argument("--users", type=int, help="closed loop: so many users, one request at a time each")
    how.add_argument("--rate", type=float, help="open loop: requests a second")
    how.add_argument("--trace", type=Path, help="open loop: a file with an arrival time in seconds a line")
    add("--think", default="0", help=f"closed loop: seconds between an answer and the next request; {FORMS}")
    add("--burstiness", type=float, default=1.0, help="open loop: 1 Poisson, below 1 bursts, inf constant")
    add("--requests", type=int, default=100, help="requests at most")
    add("--seconds", type=float, default=60.0, help="seconds to send for at most")
    add("--timeout", type=float, default=300.0, help="seconds one request may take")
    add("--max-in-flight", type=int, default=4096, help="open loop: requests running at once at most")
    add("--api", choices=sorted(PATHS), default="chat")
    add("--model", default="", help="default: the first one the server lists")
    add("--api-key", default="")
    add("--prompt-tokens", default="128", help=FORMS)
    add("--output-tokens", default="128", help=FORMS)
    add("--token-ids", action="store_true", help="completions: send token ids, exact in length")
    add("--vocab-size", type=int, default=30_000, help="token ids are below this")
    add("--shared-prefix", type=float, default=0.0, help="share of each prompt that all have in common")
    add(
        "--prompts", type=Path, help='a file of prompts: text, or JSON strings or {"prompt": ...}, one a line'
    )
    add("--seed", type=int, default=0)
    add("--no-stream", dest="stream", action="store_false", help="ask for whole answers")
    add("--no-usage", dest="usage", action="store_false", help="do not ask for the server's counts")
    add("--continuous-usage", action="store_true", help="ask for counts with every frame")
    add(
        "--extra",
        default="{}",
        help='JSON fields for every body; null takes one out, like {"ignore_eos": null}',
    )
    add("--cancel-share", type=float, default=0.0, help="share of the requests this client leaves early")
    add("--cancel-after", type=int, default=1, help="frames with tokens after which it leaves")
    add("--slo", action="append", default=[], metavar="NAME=SECONDS", help=f"limit {', '.join(SLO_METRICS)}")
    add("--warmup", type=float, help="seconds before the steady window; default a tenth of the sending time")
    add("--json", action="store_true")
    add("--records", action="store_true", help="with --json: every request, with its text")
    return parser


def _load(chosen: argparse.Namespace) -> Closed | Open:
    if chosen.users is not None:
        parse(chosen.think, name="--think")
        return Closed(chosen.users, chosen.think)
    if chosen.trace is None:
        return Open(chosen.rate, chosen.burstiness)
    try:
        times = tuple(float(line) for line in _lines(chosen.trace))
    except ValueError as error:
        raise ConfigError(f"--trace must hold one number a line: {error}") from None
    if not times or not all(map(math.isfinite, times)):
        raise ConfigError("--trace must hold at least one arrival time, all of them finite")
    return Open(times=times)


def _read_prompts(path: Path) -> tuple[str, ...]:
    prompts = tuple(map(_prompt, _lines(path)))
    if not prompts:
        raise ConfigError("--prompts holds no prompt")
    return prompts


def _prompt(line: str) -> str:
    """A JSON string or object with `prompt`, else the line itself."""
    try:
        value = msgspec.json.decode(line)
    except msgspec.DecodeError:
        return line
    if isinstance(value, dict) and isinstance(value.get("prompt"), str):
        return str(value["prompt"])
    return value if isinstance(value, str) else line


def _lines(path: Path) -> list[str]:
    try:
        return [line for line in path.read_text().splitlines() if line.strip()]
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from None


def _json_object(raw: str, name: str) -> dict[str, object]:
    try:
        return msgspec.json.decode(raw, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"{name} must be a JSON object: {error}") from None


def _slo(entries: Sequence[str]) -> dict[str, float]:
    slo: dict[str, float] = {}
    for entry in entries:
        name, _, limit = entry.partition("=")
        try:
            slo[name] = float(limit)
        except ValueError:
            raise ConfigError(f"--slo must be NAME=SECONDS, not {entry!r}") from None
    slo_limits(slo)
    return slo
