"""`tokenmill run PROMPT`."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Annotated

import typer
from rich.console import Console

from tokenmill.cli.conversation import LocalModel, show_text
from tokenmill.cli.load import load, settings
from tokenmill.cli.options import Config, Json, takes
from tokenmill.cli.report import HumanReporter, json_line, memory_records, print_memory
from tokenmill.cli.sampling import DEFAULT_MAX_TOKENS, MaxTokens, Seed, Temperature, sampling
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import SamplingParams


@dataclass(frozen=True)
class Answer:
    """A finished answer and what it took.

    Attributes:
        ttft_s: seconds from the prompt to the first token.
        tokens_per_s: rate of the tokens after the first; 0 when there was only one.
    """

    text: str
    finish_reason: str
    prompt_tokens: int
    completion_tokens: int
    ttft_s: float
    tokens_per_s: float


@takes(ModelFlags)
def command(
    prompt: Annotated[str, typer.Argument(metavar="PROMPT", help="What to ask.")],
    model: Annotated[str | None, typer.Option("--model", metavar="MODEL", help="Model to ask.")] = None,
    max_tokens: MaxTokens = DEFAULT_MAX_TOKENS,
    temperature: Temperature = 0.0,
    seed: Seed = None,
    config: Config = None,
    as_json: Json = False,
    *,
    flags: dict[str, object],
) -> None:
    """Answer one prompt without a server, then show memory by part, TTFT and tokens/s."""
    params = sampling(max_tokens, temperature, seed)
    found = settings(flags, config, model, default=True)
    worker = load(found.model, found.engine, HumanReporter())
    try:
        answer = asyncio.run(ask(LocalModel(worker), prompt, params, stream=not as_json))
        parts = worker.memory.parts
    finally:
        worker.stop()
    if as_json:
        json_line({"model": worker.name, **asdict(answer), "memory": memory_records(parts)})
        return
    console = Console(highlight=False)
    console.print("\n")
    print_memory(console, parts)
    console.print(f"\n{summary(answer)}")


async def ask(
    model: LocalModel,
    prompt: str,
    params: SamplingParams,
    *,
    stream: bool,
    now: Callable[[], float] = time.perf_counter,
) -> Answer:
    """Asks and waits for the end, writing the text as it comes where `stream` is set."""
    text: list[str] = []
    finish, prompt_tokens, completion_tokens = "", 0, 0
    start = now()
    first = last = start
    async with contextlib.aclosing(model.stream([{"role": "user", "content": prompt}], params)) as deltas:
        async for delta in deltas:
            last = now()
            if first == start:
                first = last
            text.append(delta.text)
            if stream:
                show_text(delta.text)
            finish = delta.finish_reason or finish
            if delta.usage is not None:
                prompt_tokens, completion_tokens = delta.usage.prompt_tokens, delta.usage.completion_tokens
    rate = (completion_tokens - 1) / (last - first) if last > first else 0.0
    return Answer("".join(text), finish, prompt_tokens, completion_tokens, first - start, rate)


def summary(answer: Answer) -> str:
    """One line: tokens, TTFT, rate, and a word when the answer was cut."""
    line = (
        f"  {answer.prompt_tokens} prompt tokens, {answer.completion_tokens} output tokens, "
        f"TTFT {answer.ttft_s:.3f} s, {answer.tokens_per_s:.1f} tokens/s"
    )
    return f"{line} (cut at --max-tokens)" if answer.finish_reason == "length" else line
