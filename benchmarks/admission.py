"""How much of the expected growth admission should leave free: steps and recompute by share.

Drives the real scheduler with a model that costs nothing, over seeded mixes of prompts (10-1500 tokens) and
outputs (1-200). Fewer steps for the same tokens is more throughput.

    python benchmarks/admission.py
"""

from __future__ import annotations

import random
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))

from support.fake_engine import Harness
from tokenmill.core.events import StepCompleted
from tokenmill.engine import policy

SHARES = (0.0, 0.25, 0.5, 1.0)
POOLS = (64, 256)
SEEDS = (1, 2)


def run(share: float, blocks: int, seed: int) -> tuple[int, int, int]:
    """(steps, preemptions, recomputed tokens) of 64 requests over a pool of 32-token blocks."""
    policy.GROWTH_SHARE = share
    chance = random.Random(seed)
    engine = Harness(num_blocks=blocks, block_size=32, max_model_len=4096)
    for number in range(64):
        prompt = [chance.randrange(1, 32) for _ in range(chance.randint(10, 1500))]
        engine.add(f"r{number}", prompt, max_tokens=chance.randint(1, 200))
    while engine.core.has_work:
        engine.core.step()
    steps = [event for event in engine.events if isinstance(event, StepCompleted)]
    preempted = sum(type(event).__name__ == "Preempted" for event in engine.events)
    return len(steps), preempted, sum(step.recomputed_tokens for step in steps)


def main() -> None:
    print("blocks  share  steps  preemptions  recomputed tokens   (sum over seeds)")
    for blocks in POOLS:
        for share in SHARES:
            totals = [sum(column) for column in zip(*(run(share, blocks, s) for s in SEEDS), strict=True)]
            print(f"{blocks:6}  {share:5.2f}  {totals[0]:5}  {totals[1]:11}  {totals[2]:17}")


if __name__ == "__main__":
    main()
