"""The working set against hand arithmetic, and against what the reference path really allocates."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.tiny_models import load_tiny, save_tiny, step_of
from tokenmill.core.request import SamplingParams
from tokenmill.engine.prompt_logprobs import score
from tokenmill.engine.sampler import sample
from tokenmill.engine.sampler_state import SamplerState
from tokenmill.kernels.step import Step
from tokenmill.models.source import open_model
from tokenmill.models.spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec
from tokenmill.planner.activations import StepBounds, activation_bytes, table_bytes

ROPE = RopeSpec(1e4, 8)
LAYER = LayerSpec(heads=4, kv_heads=2, head_dim=8, intermediate=32, scale=1.0, rope=ROPE)
# 16 rows; a context of 100 is padded to 512.
STEP = StepBounds(tokens=16, sequences=4, context=100, matrix_bytes=2, kv_bytes=2)
# Residual stream: 16 x (16 wide x (4 float + 1 matrix) + 8 angles in float).
STREAM = 16 * (16 * 18 + 32)
# Masks: 4 decoding rows, 2 heads filled up to 8, and 12 x 2 rows, over 512 in 2 bytes.
MASKS = 512 * 2 * (4 * 8 + 12 * 2)
# Attention, 8 wide: 16 x 8 projected in 2 bytes; 16 x 6 rotated in 4, 16 x 4 queries and results in 4; the group that
# decodes: 4 x 2 x 8 rows in (3 x 4 + 2 x 2), K and V of 4 x 512 positions and 2 heads in 2.
ATTENTION = 8 * (16 * 8 * 2 + 16 * 6 * 4 + 2 * 16 * 4 * 4 + 64 * 16 + 2 * 2048 * 2 * 2)
# Drawing: 16 prompt rows of float logits, and 4 rows in 8 floats, 4 doubles and a mask.
DRAWN = 16 * 4 + 4 * (8 * 4 + 4 * 8 + 1)


def model(*layers: LayerSpec, vocabulary: int = 100) -> ModelSpec:
    return ModelSpec("llama", vocabulary, 16, layers or (LAYER,), 1e-5, 128)


def test_a_step_is_its_stream_its_layers_and_half_of_its_logits() -> None:
    assert activation_bytes(model(), STEP) == STREAM + MASKS + ATTENTION + 100 * DRAWN // 2


def test_without_sequences_that_decode_a_run_of_queries_is_widest() -> None:
    alone = replace(STEP, sequences=1, context=512)
    # One row that may decode: 512 positions are gathered, and 16 x 4 queries are more than 2 x 8 rows; the mask
    # that is made takes 512 x 16 x (1 + 2 + 2 x 2).
    group = max(8 * (64 * 16 + 2 * 512 * 2 * 2), 512 * 16 * 7)
    masks = 512 * 2 * (8 + 15 * 2)
    attention = 8 * (16 * 8 * 2 + 16 * 6 * 4 + 2 * 16 * 4 * 4) + group
    logits = 100 * max(16 * 4 + 65, 17 * 6, 17 * 4 + 16 * 5)
    assert activation_bytes(model(), alone) == STREAM + masks + attention + logits // 2


def test_sequences_that_decode_gather_at_most_8192_positions_at_once() -> None:
    # 16 sequences of 1024, twice the bound, gather 8192 positions: K and V of 2 heads, 8 wide, in 2 bytes.
    many = replace(STEP, sequences=16, context=1024)
    masks = 1024 * 2 * (16 * 8)
    group = 16 * 2 * 8 * 8 * 16 + 8192 * 2 * 2 * 8 * 2
    attention = 8 * (16 * 8 * 2 + 16 * 6 * 4 + 2 * 16 * 4 * 4) + group
    logits = 100 * (32 * 4 + 16 * (7 * 4 + 4 * 8 + 1))
    assert activation_bytes(model(), many) == STREAM + masks + attention + logits // 2


def test_a_large_vocabulary_outweighs_the_layers() -> None:
    made = activation_bytes(model(vocabulary=262144), STEP)
    assert made == STREAM + 262144 * DRAWN + (MASKS + ATTENTION) // 2


def test_a_wide_mlp_outweighs_attention() -> None:
    wide = replace(LAYER, intermediate=2048)
    # 16 rows x (gate and up, activated gate, product, input) in 2 bytes
    mlp = 16 * 2 * (4 * 2048 + 16)
    assert activation_bytes(model(wide), STEP) == STREAM + MASKS + mlp + 100 * DRAWN // 2
    # A narrower layer beside it changes nothing.
    assert activation_bytes(model(LAYER, wide), STEP) == activation_bytes(model(wide), STEP)


def test_experts_add_their_routing_to_one_expert() -> None:
    dense = replace(LAYER, intermediate=2048)
    sparse = replace(dense, experts=ExpertsSpec(count=4, active=2, renormalize=True))
    # 16 rows x (4 scores twice in float, 2 choices in (4 + 4 x 8), 6 rows of 16 in float and one in 2 bytes)
    routing = 16 * (2 * 4 * 4 + 2 * 36 + 6 * 16 * 4 + 16 * 2)
    assert activation_bytes(model(sparse), STEP) == activation_bytes(model(dense), STEP) + routing


def test_each_window_has_masks_of_its_own() -> None:
    both = activation_bytes(model(LAYER, replace(LAYER, window=64)), STEP)
    assert both == activation_bytes(model(), STEP) + 512 * 2 * (4 * 8 + 12 * 2)


def test_each_distinct_rope_has_a_table_and_angles() -> None:
    local = replace(LAYER, rope=RopeSpec(1e6, 4))
    # cosines and sines: 2 x 128 positions x dim / 2 in float
    assert table_bytes(model(LAYER, LAYER), 128) == 2 * 128 * 4 * 4
    assert table_bytes(model(LAYER, local), 128) == 2 * 128 * (4 + 2) * 4
    assert activation_bytes(model(LAYER, local), STEP) == activation_bytes(model(), STEP) + 16 * 4 * 4


def peak_of(work: Callable[[], object]) -> int:
    """Most bytes of tensors alive at once while it runs, beyond those before."""
    with torch.profiler.profile(profile_memory=True) as profile:
        work()
    events = [e for e in profile.profiler.kineto_results.events() if e.name() == "[memory]"]
    changes: list[int] = [event.nbytes() for event in sorted(events, key=lambda event: event.start_ns())]
    return max(accumulate(changes, initial=0))


# Eight sequences decode at 500 tokens while one computes 248 at the end of 512.
CONTEXT, PREFILL, DECODING = 512, 248, 8


def widest_step() -> Step:
    blocks = [list(range(32 * n, 32 * n + 32)) for n in range(DECODING + 1)]
    decoding = [([5], 499, blocks[n]) for n in range(DECODING)]
    return step_of([*decoding, ([7] * PREFILL, CONTEXT - PREFILL, blocks[-1])])


@pytest.mark.parametrize(
    ("kind", "changes", "least"),
    [
        ("llama", {}, 0.75),
        ("llama", {"intermediate_size": 2048}, 0.9),
        ("qwen3", {}, 0.75),
        ("gemma3", {"num_hidden_layers": 7, "sliding_window": 100}, 0.75),
        # All rows are one token, and choose the same experts.
        ("mixtral", {"intermediate_size": 2048}, 0.8),
        ("qwen3_moe", {"moe_intermediate_size": 2048}, 0.8),
    ],
)
def test_the_reference_path_allocates_what_is_planned_and_no_more(
    kind: str, changes: dict[str, Any], least: float, tmp_path: Path
) -> None:
    save_tiny(kind, tmp_path, **{"hidden_size": 192, **changes})
    program, step = load_tiny(tmp_path, num_blocks=32 * (DECODING + 1)), widest_step()
    source = open_model(tmp_path)
    source.weights.close()
    bounds = StepBounds(PREFILL + DECODING, DECODING, CONTEXT, matrix_bytes=4, kv_bytes=4)
    logits = len(step.logit_rows) * source.spec.vocab_size * 4  # of every row here
    peak = peak_of(lambda: program.run(step))
    planned = activation_bytes(source.spec, bounds)
    assert peak - logits <= planned
    assert peak >= least * planned


@pytest.mark.parametrize("kind", ["mixtral", "qwen3_moe"])
def test_rows_that_choose_different_experts_stay_within_the_plan(kind: str, tmp_path: Path) -> None:
    save_tiny(kind, tmp_path, hidden_size=192, intermediate_size=2048, moe_intermediate_size=2048)
    program, step = load_tiny(tmp_path, num_blocks=32 * (DECODING + 1)), widest_step()
    source = open_model(tmp_path)
    source.weights.close()
    varied = replace(step, token_ids=np.arange(PREFILL + DECODING) % 150 + 5)
    bounds = StepBounds(PREFILL + DECODING, DECODING, CONTEXT, matrix_bytes=4, kv_bytes=4)
    logits = len(step.logit_rows) * source.spec.vocab_size * 4  # of every row here
    assert peak_of(lambda: program.run(varied)) - logits <= activation_bytes(source.spec, bounds)


@pytest.mark.parametrize("temperature", [0.0, 1.0], ids=["not all are drawn", "all are drawn"])
def test_the_sampler_allocates_what_is_planned_and_no_more(temperature: float) -> None:
    rows, vocabulary = 16, 20_000
    logits = torch.randn(rows, vocabulary, generator=torch.Generator().manual_seed(0))
    params = [SamplingParams(top_p=0.99, logprobs=3, temperature=1.0)] * (rows - 1)
    params.append(SamplingParams(logprobs=3, temperature=temperature, top_p=0.99))
    states = [SamplerState(each, 1, 0) for each in params]
    peak = peak_of(lambda: sample(logits, states)) + logits.nbytes
    small = ModelSpec("llama", vocabulary, 8, (replace(LAYER, heads=2, kv_heads=2),), 1e-5, 128)
    step = StepBounds(tokens=16, sequences=rows, context=1, matrix_bytes=4, kv_bytes=4)
    planned = activation_bytes(small, step) - activation_bytes(replace(small, vocab_size=0), step)
    prompts = 16 * vocabulary * 4
    assert 0.9 * (planned - prompts) <= peak <= planned


def test_scoring_prompts_allocates_what_is_planned_and_no_more() -> None:
    vocabulary = 20_000
    logits = torch.randn(64, vocabulary, generator=torch.Generator().manual_seed(0))
    peak = peak_of(lambda: score(logits, [5] * 64, 3)) + logits.nbytes
    # 64 prompt rows and one that is drawn, as float; of the 64, log-probabilities and a byte.
    planned = vocabulary * (65 * 4 + 64 * (4 + 1))
    step = StepBounds(tokens=64, sequences=1, context=1, matrix_bytes=2, kv_bytes=2)
    one, two = (activation_bytes(model(vocabulary=times * vocabulary), step) for times in (20, 21))
    assert two - one == planned
    assert 0.9 * planned <= peak <= planned


def test_padding_of_logits_in_float_is_counted_and_of_narrow_ones_dropped() -> None:
    # 16 prompt rows and 1: 17 are computed as 24; the 16 are scored in 5 bytes.
    for matrix_bytes, held in ((4, 24), (2, 17)):
        step = replace(STEP, sequences=1, matrix_bytes=matrix_bytes)
        one, two = (activation_bytes(model(vocabulary=times * 262144), step) for times in (1, 2))
        assert two - one == 262144 * (held * 4 + 16 * 5)
