"""Rotary frequencies against transformers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding

from tokenmill.models.rope import inverse_frequencies
from tokenmill.models.spec import RopeSpec

# Llama 3.1's; low and high are the defaults of `RopeSpec`.
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}


def oracle(theta: float, dim: int, **scaling: Any) -> torch.Tensor:
    config = transformers.LlamaConfig(
        hidden_size=dim * 4,
        num_attention_heads=4,
        head_dim=dim,
        max_position_embeddings=131072,
        rope_parameters={"rope_type": "default", "rope_theta": theta, **scaling},
    )
    frequencies: torch.Tensor = LlamaRotaryEmbedding(config).inv_freq
    return frequencies.double()


@pytest.mark.parametrize(
    ("rope", "scaling"),
    [
        (RopeSpec(theta=10000.0, dim=128), {}),
        (RopeSpec(theta=100000.0, dim=64), {}),
        (RopeSpec(theta=10000.0, dim=96, kind="linear", factor=4.0), {"rope_type": "linear", "factor": 4.0}),
        (
            RopeSpec(theta=500000.0, dim=128, kind="llama3", factor=8.0, original_max_position=8192),
            {"rope_type": "llama3", "original_max_position_embeddings": 8192, **LLAMA3},
        ),
        (
            RopeSpec(
                theta=500000.0,
                dim=64,
                kind="llama3",
                factor=32.0,
                low_freq_factor=2.0,
                high_freq_factor=8.0,
                original_max_position=4096,
            ),
            {
                "rope_type": "llama3",
                "factor": 32.0,
                "low_freq_factor": 2.0,
                "high_freq_factor": 8.0,
                "original_max_position_embeddings": 4096,
            },
        ),
    ],
    ids=["default", "smollm2", "linear", "llama3.1", "llama3.2-like"],
)
def test_frequencies_are_those_of_transformers(rope: RopeSpec, scaling: dict[str, Any]) -> None:
    ours = torch.tensor(inverse_frequencies(rope, 0), dtype=torch.float64)
    # transformers computes in float32: 2e-6 is a few of its last bits, through a power and a division.
    torch.testing.assert_close(ours, oracle(rope.theta, rope.dim, **scaling), rtol=2e-6, atol=0)


def test_stored_factors_divide_the_plain_frequencies() -> None:
    plain = inverse_frequencies(RopeSpec(theta=10000.0, dim=4), 0)
    rope = RopeSpec(theta=10000.0, dim=4, kind="factors", factors=(1.0, 8.0))
    assert inverse_frequencies(rope, 0) == [plain[0], plain[1] / 8.0] == [1.0, 0.01 / 8.0]


def test_llama3_as_stored_factors_gives_the_same_frequencies() -> None:
    """GGUF stores llama3 scaling as the ratio of the plain frequencies to the scaled ones."""
    llama3 = RopeSpec(theta=500000.0, dim=128, kind="llama3", factor=8.0, original_max_position=8192)
    plain = inverse_frequencies(RopeSpec(theta=500000.0, dim=128), 0)
    scaled = inverse_frequencies(llama3, 0)
    factors = tuple(p / s for p, s in zip(plain, scaled, strict=True))
    stored = RopeSpec(theta=500000.0, dim=128, kind="factors", factors=factors)
    assert inverse_frequencies(stored, 0) == pytest.approx(scaled, rel=1e-12)
    assert min(factors) == 1.0
    assert max(factors) == pytest.approx(8.0)
