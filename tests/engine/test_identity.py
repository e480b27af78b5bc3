"""On the real model, an answer is the same bits whatever else the engine does.

Stronger than needed: not one token may differ, so there is no margin under which a mismatch is excused.
"""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch

from support.real_engine import RealModel, text, tokens
from tokenmill.core.events import Event, Preempted, PrefixLookup
from tokenmill.core.request import SamplingParams
from tokenmill.hardware.cpu import multiplies_bfloat16
from tokenmill.kernels.cpu.abi import KvFormat
from tokenmill.planner.packing import Quantization

OUTPUT = 12
GREEDY = SamplingParams(temperature=0, max_tokens=OUTPUT)
WORDS = [
    "the",
    "a",
    "river",
    "of",
    "stone",
    "and",
    "light",
    "when",
    "winter",
    "came",
    "they",
    "built",
    "small",
    "houses",
    "near",
    "salt",
    "water",
]


NATIVE: dict[str, tuple[Quantization, KvFormat]] = {
    "native": ("auto", KvFormat.INT8),
    "native-bfloat16": ("none", KvFormat.BF16),
}


@pytest.fixture(scope="module", params=["float32", "bfloat16", *NATIVE])
def model(request: pytest.FixtureRequest, small_model_path: Path) -> RealModel:
    if request.param in NATIVE:
        return RealModel.load_native(small_model_path, *NATIVE[request.param])
    if request.param == "bfloat16" and not multiplies_bfloat16():
        # Emulated products are not what anyone runs; float32 covers this machine.
        return RealModel.load(small_model_path, torch.float32)
    return RealModel.load(small_model_path, getattr(torch, request.param))


@pytest.fixture(scope="module")
def prompts(model: RealModel) -> list[list[int]]:
    chance = random.Random(7)
    lengths = [chance.choice((3, 12, 20, 45, 64, 90)) for _ in range(16)]
    return [model.tokenizer.encode(" ".join(chance.choices(WORDS, k=n)), add_special=True) for n in lengths]


@pytest.fixture(scope="module")
def alone(model: RealModel, prompts: list[list[int]]) -> list[list[int]]:
    """Each prompt by itself, whole, with nothing cached."""
    return [tokens(model.run([prompt], GREEDY)[0]) for prompt in prompts]


@pytest.mark.parametrize("size", [2, 8, 16])
def test_batches(model: RealModel, prompts: list[list[int]], alone: list[list[int]], size: int) -> None:
    for start in range(0, 16, size):
        found = model.run(prompts[start : start + size], GREEDY)
        assert [tokens(deltas) for deltas in found] == alone[start : start + size]


@pytest.mark.parametrize("budget", [1, 7, 32])
def test_chunks(model: RealModel, prompts: list[list[int]], alone: list[list[int]], budget: int) -> None:
    few = 2 if budget == 1 else 5
    found = model.run(prompts[:few], GREEDY, max_num_batched_tokens=budget)
    assert [tokens(deltas) for deltas in found] == alone[:few]


def test_prefix_hits(model: RealModel, prompts: list[list[int]], alone: list[list[int]]) -> None:
    events: list[Event] = []
    core = model.core(events)
    for _ in range(2):
        found = model.run(prompts[:8], GREEDY, core=core)
        assert [tokens(deltas) for deltas in found] == alone[:8]
    hits = [event.hit_tokens for event in events if isinstance(event, PrefixLookup)]
    assert sum(hits[8:]) > 0


def test_preemption(model: RealModel, prompts: list[list[int]]) -> None:
    # Three short prompts are expected to reach 3 blocks each, and grow to 4.
    short = sorted(prompts, key=len)[:3]
    long = SamplingParams(temperature=0, max_tokens=96, ignore_eos=True)
    calm = model.run(short, long, enable_prefix_caching=False)
    events: list[Event] = []
    tight = model.run(short, long, events=events, num_blocks=9, enable_prefix_caching=False)
    assert [event for event in events if isinstance(event, Preempted)]
    assert [tokens(deltas) for deltas in tight] == [tokens(deltas) for deltas in calm]


def test_static_batches(model: RealModel, prompts: list[list[int]], alone: list[list[int]]) -> None:
    found = model.run(prompts[:6], GREEDY, batching="static", max_num_seqs=3)
    assert [tokens(deltas) for deltas in found] == alone[:6]


def test_seeds_give_the_same_text_in_any_company(model: RealModel, prompts: list[list[int]]) -> None:
    params = [
        SamplingParams(temperature=0.9, top_p=0.95, top_k=50 if i % 2 else 0, seed=i, max_tokens=OUTPUT, n=2)
        for i in range(4)
    ]
    together = model.run(prompts[:4], params)
    apart = [model.run([prompt], param)[0] for prompt, param in zip(prompts[:4], params, strict=True)]
    chunked = model.run(prompts[:4], params, max_num_batched_tokens=7)
    for index in (0, 1):
        expected = [tokens(deltas, index) for deltas in apart]
        assert [tokens(deltas, index) for deltas in together] == expected
        assert [tokens(deltas, index) for deltas in chunked] == expected
    assert text(together[0], 0) != text(together[0], 1)


@pytest.mark.parametrize("budget", [7, 64])
def test_what_is_read_of_prompts(model: RealModel, prompts: list[list[int]], budget: int) -> None:
    scored = SamplingParams(temperature=0, max_tokens=0, prompt_logprobs=2)
    few = sorted(prompts[:8], key=len)[2:5]
    alone = [model.run([prompt], scored)[0][0].prompt_logprobs for prompt in few]
    together = model.run(few, scored, max_num_batched_tokens=budget)
    assert [deltas[0].prompt_logprobs for deltas in together] == alone
    apart = [model.embed([prompt], "mean")[0] for prompt in few]
    assert model.embed(few, "mean", max_num_batched_tokens=budget) == apart


def test_streamed_text_is_the_decoded_whole(model: RealModel, prompts: list[list[int]]) -> None:
    for deltas in model.run(prompts[:8], SamplingParams(temperature=1.0, seed=3, max_tokens=30)):
        assert text(deltas) == model.tokenizer.decode(tokens(deltas))
