"""The memory formula against hand arithmetic."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from tokenmill.core.errors import ConfigError, InsufficientMemory
from tokenmill.core.flags import ModelFlags
from tokenmill.models.spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec
from tokenmill.planner.activations import StepBounds, activation_bytes
from tokenmill.planner.costs import ReferenceCosts, kv_bytes_per_token, weight_bytes
from tokenmill.planner.memory import plan_memory
from tokenmill.planner.products import COMPILED_BYTES

GIB = 1 << 30


def model(
    layers: int, hidden: int, heads: int, kv_heads: int, dim: int, mlp: int, vocab: int, **more: Any
) -> ModelSpec:
    layer = LayerSpec(heads, kv_heads, dim, mlp, scale=dim**-0.5, rope=RopeSpec(1e4, dim))
    return ModelSpec("llama", vocab, hidden, (layer,) * layers, 1e-5, 2048, **more)


# Llama-2-7B: 32 layers, hidden 4096, 32 heads of 128, MLP 11008, vocabulary 32000.
SEVEN_B = model(32, 4096, 32, 32, 128, 11008, 32000)
SMALL = model(30, 576, 9, 3, 64, 1536, 49152, tied_embeddings=True)


def test_weights_of_a_7b_in_16_bit() -> None:
    # 2 x 32000 x 4096 + 32 x (4 x 4096^2 + 3 x 4096 x 11008) = 6,738,149,376 matrix elements in 2 bytes,
    # and 65 norms of 4096 in 4
    assert weight_bytes(SEVEN_B, "BF16") == 2 * 6_738_149_376 + 4 * 65 * 4096
    # "7B in FP16 is 14 GB", rounded up from 13.5
    assert 13.4e9 < weight_bytes(SEVEN_B, "BF16") < 14e9


@pytest.mark.parametrize(("batch", "gigabytes"), [(1, 1.07), (8, 8.6), (32, 34.4)])
def test_kv_of_a_7b(batch: int, gigabytes: float) -> None:
    # 2 x 32 layers x 32 heads x 128 x 2 bytes = 524,288 a token; 2048 tokens a sequence
    assert kv_bytes_per_token(SEVEN_B, 2) == 524_288
    assert kv_bytes_per_token(SEVEN_B, 2) * 2048 * batch == pytest.approx(gigabytes * 1e9, rel=0.01)


def test_grouped_heads_need_less_kv_and_tied_embeddings_count_once() -> None:
    # 2 x 30 x 3 x 64 x 2
    assert kv_bytes_per_token(SMALL, 2) == 23_040
    # 49152 x 576 + 30 x (576 x 960 + 576 x 576 + 3 x 576 x 1536) elements, 61 norms of 576
    elements = 49152 * 576 + 30 * (576 * 960 + 576 * 576 + 3 * 576 * 1536)
    assert weight_bytes(SMALL, "F32") == 4 * elements + 4 * 61 * 576


def plan(available: int, spec: ModelSpec = SMALL, **flags: Any) -> Any:
    return plan_memory(spec, ModelFlags(**flags), costs=ReferenceCosts("BF16", 2), available=available)


def test_the_default_pool_serves_all_sequences_at_a_typical_length_and_no_more() -> None:
    made = plan(64 * GIB, max_num_seqs=16)
    assert made.kv_tokens == 16 * 2048
    assert made.total == made.weights + made.tables + made.kv_pool + made.activations + made.imports


def test_the_default_pool_takes_its_share_of_what_is_free() -> None:
    made = plan(2 * GIB, gpu_memory_utilization=0.5)
    beside_imports = made.total - made.imports
    assert GIB - 32 * 23_040 < beside_imports <= GIB


def test_a_pool_asked_for_in_blocks_or_bytes() -> None:
    assert plan(8 * GIB, num_kv_blocks=64).kv_tokens == 64 * 32
    # 100 MiB / (32 x 23,040) = 142.2
    assert plan(8 * GIB, kv_cache_memory_bytes="100MiB").num_kv_blocks == 142


@pytest.mark.parametrize("flags", [{}, {"num_kv_blocks": 10**7}, {"kv_cache_memory_bytes": "100GiB"}])
def test_what_does_not_fit_is_refused_with_figures_and_a_way_out(flags: dict[str, Any]) -> None:
    with pytest.raises(InsufficientMemory, match=r"MiB of weights.*--max-model-len"):
        plan(GIB // 4 if not flags else 8 * GIB, **flags)


def test_the_longest_sequence_is_the_models_or_the_flags() -> None:
    assert plan(8 * GIB).max_model_len == 2048
    assert plan(8 * GIB, max_model_len=512).max_model_len == 512
    with pytest.raises(ConfigError, match="at most 2048"):
        plan(8 * GIB, max_model_len=4096)


def test_a_bounded_context_needs_less_working_memory() -> None:
    assert plan(8 * GIB, max_model_len=256).activations <= plan(8 * GIB).activations


@pytest.mark.parametrize(("form", "size", "compiled"), [("BF16", 2, 4 * 12 + 8), ("F32", 4, 0)])
def test_working_memory_is_a_step_compiled_products_and_a_block(form: str, size: int, compiled: int) -> None:
    flags = ModelFlags(max_num_batched_tokens=512, max_num_seqs=64, max_model_len=1024)
    made = plan_memory(SMALL, flags, costs=ReferenceCosts(form, 2), available=64 * GIB)
    step = StepBounds(tokens=512, sequences=64, context=1024, matrix_bytes=size, kv_bytes=2)
    # Four shapes in 12 numbers of rows up to 512, logits in 8 up to 128; 32 tokens of 23,040
    assert made.activations == activation_bytes(SMALL, step) + compiled * COMPILED_BYTES + 32 * 23_040
    # Cosines and sines of 1024 positions, 32 each in float
    assert made.tables == 2 * 1024 * 32 * 4


def test_routers_are_held_in_float() -> None:
    layer = replace(SMALL.layers[0], experts=ExpertsSpec(count=4, active=2, renormalize=True))
    sparse = replace(SMALL, layers=(layer,))
    # 49152 x 576 embeddings, attention, 4 experts in 2 bytes; 3 norms of 576 and a router of 4 x 576 in 4
    matrices = 49152 * 576 + 576 * 960 + 576 * 576 + 4 * 3 * 576 * 1536
    assert weight_bytes(sparse, "BF16") == 2 * matrices + 4 * (3 * 576 + 4 * 576)
