"""Rotary frequencies from a `RopeSpec`. The formulas are those of transformers' modeling_rope_utils."""

from __future__ import annotations

import math

from tokenmill.models.spec import RopeSpec


def inverse_frequencies(rope: RopeSpec, context: int) -> list[float]:
    """Radians a position turns each pair of components, [dim / 2]; pair i is (i, i + dim / 2).

    Args:
        context: longest sequence to be served, in tokens; some kinds depend on it. It is one number for a
            loaded model, so that a token's K does not depend on what came after it.
    """
    plain = [rope.theta ** -(i / rope.dim) for i in range(0, rope.dim, 2)]
    if rope.kind == "linear":
        return [frequency / rope.factor for frequency in plain]
    if rope.kind == "llama3":
        return [_llama3(frequency, rope) for frequency in plain]
    if rope.kind == "factors":
        return [frequency / factor for frequency, factor in zip(plain, rope.factors, strict=True)]
    return plain


def _llama3(frequency: float, rope: RopeSpec) -> float:
    """Slow pairs are slowed by `factor`, fast ones kept, those between are blended (Llama 3.1)."""
    turns = rope.original_max_position * frequency / (2 * math.pi)  # over the original context
    if turns < rope.low_freq_factor:
        return frequency / rope.factor
    if turns > rope.high_freq_factor:
        return frequency
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - kept) * frequency / rope.factor + kept * frequency
