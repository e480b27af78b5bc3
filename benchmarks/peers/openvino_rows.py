"""Runs rows in OpenVINO GenAI. Started with the interpreter of its environment; see `contender.run_rows`."""

from __future__ import annotations

import itertools
import json
import sys
import time
from typing import Any

import numpy as np
import openvino
import openvino_genai

from benchmarks.peers.window import Arrival, decode_rate

CACHE_GIB = 2
Batch = list[list[int]]


class Runner:
    """A loaded model."""

    def __init__(self, model: str) -> None:
        scheduler = openvino_genai.SchedulerConfig()
        scheduler.cache_size = CACHE_GIB
        self._pipeline = openvino_genai.ContinuousBatchingPipeline(model, scheduler, "CPU")
        self._numbers = itertools.count()

    def run(self, batch: Batch, output_tokens: int) -> list[Arrival]:
        """Answers a batch of prompts greedily; when each token came, in seconds from the start."""
        config = openvino_genai.GenerationConfig()
        config.max_new_tokens, config.ignore_eos, config.do_sample = output_tokens, True, False
        start = time.perf_counter()
        handles = [
            self._pipeline.add_request(next(self._numbers), openvino.Tensor(np.array([ids])), config)
            for ids in batch
        ]
        arrivals: list[Arrival] = []
        while self._pipeline.has_non_finished_requests():
            self._pipeline.step()
            now = time.perf_counter() - start
            arrivals += [
                Arrival(now, stream, count)
                for stream, handle in enumerate(handles)
                if (count := _new_tokens(handle))
            ]
        if sum(one.tokens for one in arrivals) != len(batch) * output_tokens:
            raise ValueError("an answer was shorter than asked for")
        return arrivals


def _new_tokens(handle: Any) -> int:
    count = 0
    while handle.can_read():
        count += sum(len(output.generated_ids) for output in handle.read().values())
    return count


def rate(kind: str, batch: Batch, arrivals: list[Arrival]) -> float:
    """Tokens a second of one run, by the kind of its row."""
    if kind == "decode":
        return decode_rate(arrivals)
    seconds = arrivals[-1].seconds
    if kind == "prefill":
        return sum(map(len, batch)) / seconds
    return sum(one.tokens for one in arrivals) / seconds


def main() -> None:
    job = json.load(sys.stdin)
    runner = Runner(job["model"])
    runner.run([[100 + number] * 16 for number in range(2)], 4)
    for row in job["rows"]:
        answer: dict[str, object] = {"row": row["name"]}
        try:
            answer["rates"] = [
                rate(row["kind"], batch, runner.run(batch, row["output_tokens"])) for batch in row["batches"]
            ]
        except Exception as error:
            answer["failed"] = str(error)[:500] or type(error).__name__
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
