"""Runs rows in our engine, in this process; see `contender.run_rows`."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

import msgspec

from tokenmill.core.bus import Bus
from tokenmill.core.errors import TokenmillError
from tokenmill.core.events import Event, StepCompleted
from tokenmill.core.request import SamplingParams
from tokenmill.engine.offline import Engine

Batch = list[list[int]]


class Job(msgspec.Struct):
    model: str
    flags: dict[str, str]
    rows: list[JobRow]


class JobRow(msgspec.Struct):
    name: str
    kind: str
    output_tokens: int
    batches: list[Batch]


class Steps:
    """A subscriber that keeps the steps."""

    def __init__(self) -> None:
        self.seen: list[StepCompleted] = []

    def __call__(self, event: Event) -> None:
        if isinstance(event, StepCompleted):
            self.seen.append(event)


def decode_rate(steps: Sequence[StepCompleted], streams: int) -> float:
    """Tokens a second from the last step that prefilled to the last in which every stream got a token.

    Raises:
        ValueError: there is no such step.
    """
    begun = max((number for number, step in enumerate(steps) if step.prefill_tokens), default=0)
    full = [step for step in steps[begun + 1 :] if step.sampled_tokens == streams]
    if not full:
        raise ValueError("some stream had ended before the last one began")
    return sum(step.sampled_tokens for step in full) / (full[-1].at - steps[begun].at)


def rate(engine: Engine, steps: Steps, kind: str, batch: Batch, output_tokens: int) -> float:
    """Tokens a second of one run, by the kind of its row. Raises TokenmillError or ValueError."""
    greedy = SamplingParams(temperature=0, max_tokens=output_tokens, ignore_eos=True)
    steps.seen.clear()
    start = time.perf_counter()
    answers = engine.generate(batch, greedy, progress=False)
    seconds = time.perf_counter() - start
    for answer in answers:
        if answer.error is not None:
            raise answer.error
        if len(answer.choices[0].token_ids) != output_tokens:
            raise ValueError("an answer was shorter than asked for")
    if kind == "decode":
        return decode_rate(steps.seen, len(batch))
    return (sum(map(len, batch)) if kind == "prefill" else len(batch) * output_tokens) / seconds


def main() -> None:
    job = msgspec.json.decode(sys.stdin.buffer.read(), type=Job)
    bus, steps = Bus(), Steps()
    bus.subscribe(steps)
    with Engine(job.model, bus=bus, **job.flags) as engine:
        rate(engine, steps, "total", [[100 + number] * 16 for number in range(2)], 4)
        for row in job.rows:
            answer: dict[str, object] = {"row": row.name}
            try:
                answer["rates"] = [
                    rate(engine, steps, row.kind, batch, row.output_tokens) for batch in row.batches
                ]
            except (TokenmillError, ValueError) as error:
                answer["failed"] = str(error)
            print(msgspec.json.encode(answer).decode(), flush=True)


if __name__ == "__main__":
    main()
