"""A process that loads a model, serves streams at once, and prints what it planned and what it took (JSON).

Arguments: the model's folder, and one JSON object: flags, streams, prompt and output in tokens, sampling, and
how many of the streams want log-probabilities of their prompt (scored).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any


def peak_bytes() -> int:
    """Largest resident memory of this process so far."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:"))


def main(folder: str, asked: dict[str, Any]) -> None:
    import random

    from tokenmill.core.request import SamplingParams
    from tokenmill.engine.offline import Engine

    chance = random.Random(0)
    prompts = [[chance.randrange(100) for _ in range(asked["prompt"])] for _ in range(asked["streams"])]
    each = {"max_tokens": asked["output"], "min_tokens": asked["output"], **asked["sampling"]}
    plain = len(prompts) - asked["scored"]
    sampling = [
        SamplingParams(seed=n, prompt_logprobs=None if n < plain else 1, **each) for n in range(len(prompts))
    ]
    with Engine(folder, **asked["flags"]) as engine:
        memory, loaded = engine.worker.memory, peak_bytes()
        found = engine.generate(prompts, sampling, progress=False)
        peak = peak_bytes()
    sys.stdout.write(
        json.dumps(
            {
                "parts": {part.name: [part.planned, part.measured] for part in memory.parts},
                "planned": memory.planned,
                "loaded": loaded,
                "peak": peak,
                "lengths": [len(completion.choices[0].token_ids) for completion in found],
                "errors": [str(completion.error) for completion in found if completion.error],
            }
        )
    )


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
