"""Rotary frequencies from a `RopeSpec`. The formulas are those of transformers' modeling_rope_utils."""

from __future__ import annotations

import math

from tokenmill.models.spec import RopeSpec

# Bases a file may ask for; below 1 a power leaves the range of a float.
THETAS = (1.0, 1e300)
# Factors a file may ask for: on frequencies, on cosines and sines, and between numbers of turns.
FACTORS = (1e-6, 1e6)
# Turns between which yarn blends; what is used are 32 and 1.
TURNS = (1e-3, 1e3)


def inverse_frequencies(rope: RopeSpec, context: int) -> list[float]:
    """Radians a position turns each pair of components, [dim / 2]; pair i is (i, i + dim / 2).

    Args:
        context: longest sequence to be served, in tokens; some kinds depend on it. It is one number for a
            loaded model, so that a token's K does not depend on what came after it.
    """
    plain = _plain(rope.theta, rope.dim)
    match rope.kind:
        case "linear":
            return [frequency / rope.factor for frequency in plain]
        case "dynamic":
            return _dynamic(rope, context)
        case "yarn":
            return _yarn(rope, plain)
        case "llama3":
            return [_llama3(frequency, rope) for frequency in plain]
        case "longrope":
            factors = rope.factors if context <= rope.original_max_position else rope.long_factors
            return _divided(plain, factors)
        case "factors":
            return _divided(plain, rope.factors)
        case "default":
            return plain


def yarn_attention_factor(factor: float, mscale: float = 0.0, mscale_all_dim: float = 0.0) -> float:
    """Factor on cosines and sines where a configuration gives none (YaRN, 3.4; mscales as in DeepSeek)."""

    def scaled(by: float) -> float:
        return 0.1 * by * math.log(factor) + 1.0 if factor > 1 else 1.0

    return scaled(mscale) / scaled(mscale_all_dim) if mscale and mscale_all_dim else scaled(1.0)


def longrope_attention_factor(factor: float, original_max_position: int) -> float:
    """Factor on cosines and sines where a configuration gives none (LongRoPE, section 3.3)."""
    if factor <= 1 or original_max_position <= 1:
        return 1.0
    return math.sqrt(1 + math.log(factor) / math.log(original_max_position))


def _plain(theta: float, dim: int) -> list[float]:
    return [theta ** -(i / dim) for i in range(0, dim, 2)]


def _divided(plain: list[float], factors: tuple[float, ...]) -> list[float]:
    return [frequency / factor for frequency, factor in zip(plain, factors, strict=True)]


def _dynamic(rope: RopeSpec, context: int) -> list[float]:
    """NTK-aware scaling: theta grows with the context beyond the original one."""
    beyond = max(context, rope.original_max_position) / rope.original_max_position
    grown = rope.factor * beyond - (rope.factor - 1)
    return _plain(rope.theta * grown ** (rope.dim / (rope.dim - 2)), rope.dim)


def _yarn(rope: RopeSpec, plain: list[float]) -> list[float]:
    """Pairs that turn often over the original context are kept, slow ones slowed down, others blended
    (YaRN, 3.2)."""

    def place(turns: float) -> float:
        """Index, not whole, of the pair that makes so many turns."""
        wave = rope.original_max_position / (turns * 2 * math.pi)
        return rope.dim * math.log(wave) / (2 * math.log(rope.theta))

    first, last = place(rope.beta_fast), place(rope.beta_slow)
    if rope.truncate:
        first, last = math.floor(first), math.ceil(last)
    first, last = max(first, 0), min(last, rope.dim - 1)
    width = (last - first) or 0.001  # no division by 0
    slowed = [min(max((pair - first) / width, 0.0), 1.0) for pair in range(len(plain))]
    return [f * (1 - s) + f / rope.factor * s for f, s in zip(plain, slowed, strict=True)]


def _llama3(frequency: float, rope: RopeSpec) -> float:
    """Slow pairs are slowed by `factor`, fast ones kept, those between are blended (Llama 3.1)."""
    turns = rope.original_max_position * frequency / (2 * math.pi)  # over the original context
    if turns < rope.low_freq_factor:
        return frequency / rope.factor
    if turns > rope.high_freq_factor:
        return frequency
    kept = (turns - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor)
    return (1 - kept) * frequency / rope.factor + kept * frequency
