"""Rotary embedding of a GGUF file: keys below `{architecture}.rope.`, and factors that come as tensors.

What a key means is what llama.cpp makes of it; factors on cosines and sines multiply.
"""

from __future__ import annotations

import contextlib
import math
import struct

from tokenmill.core.errors import ModelFileError
from tokenmill.models.fields import MAX_POSITION, MAX_WIDTH, Fields
from tokenmill.models.gguf import GgufHeader
from tokenmill.models.rope import FACTORS, THETAS, TURNS
from tokenmill.models.spec import RopeSpec

FREQUENCIES, SHORT, LONG = "rope_freqs.weight", "rope_factors_short.weight", "rope_factors_long.weight"
_KINDS = ("none", "linear", "yarn", "longrope")
# Keys below the architecture's name.
_OLLAMA = {"rope.freq_base": "rope.global.freq_base", "rope.freq_base_swa": "rope.local.freq_base"}
_MAX_FACTORS = MAX_WIDTH // 2


def read_rope(
    fields: Fields, header: GgufHeader, at: str, dim: int, context: int, *, local: bool = False
) -> RopeSpec:
    """The rotary embedding of layers that look at the whole context.

    Args:
        at: start of the keys, the architecture's name and a dot.
        dim: components of a head that are rotated.
        context: the file's context length, in tokens.
        local: the other layers have a rotary embedding of their own; files of such families always say both
            bases or this one.

    Raises:
        ModelFileError: a kind or a combination that is not supported, or an unusable number.
    """
    theta = freq_base(fields, at + "rope.freq_base", None if local else 10000.0)
    kind = fields.text(at + "rope.scaling.type", "none")
    if kind not in _KINDS:
        raise fields.error(at + "rope.scaling.type", f"one of {', '.join(_KINDS)}")
    original = fields.integer(at + "rope.scaling.original_context_length", 1, MAX_POSITION, context)
    amplitude = single(fields.number(at + "rope.scaling.attn_factor", *FACTORS, 1.0))
    linear = _linear_factor(fields, at, kind)
    if SHORT in header.tensors or LONG in header.tensors:
        _refuse_twice(fields.label, SHORT, kind not in ("none", "longrope") or linear != 1)
        return RopeSpec(
            theta,
            dim,
            "longrope",
            factors=_read_factors(header, SHORT, dim, fields.label),
            long_factors=_read_factors(header, LONG, dim, fields.label),
            original_max_position=original,
            attention_factor=amplitude,
        )
    if kind == "longrope":
        raise ModelFileError(f"{fields.label}: longrope needs tensors {SHORT} and {LONG}, which are missing")
    if FREQUENCIES in header.tensors:
        _refuse_twice(fields.label, FREQUENCIES, kind == "yarn" or linear != 1)
        factors = _read_factors(header, FREQUENCIES, dim, fields.label)
        return RopeSpec(theta, dim, "factors", factors=factors, attention_factor=amplitude)
    if kind == "yarn":
        return _yarn(fields, at, RopeSpec(theta, dim), original, amplitude)
    if linear != 1:
        return RopeSpec(theta, dim, "linear", factor=linear, attention_factor=amplitude)
    return RopeSpec(theta, dim, attention_factor=amplitude)


def freq_base(fields: Fields, key: str, default: float | None) -> float:
    """The base under a key, or under the name that Gemma 3 files made by Ollama have for it.

    Raises:
        ModelFileError: an unusable base, or none where there is no default.
    """
    other = _OLLAMA.get(key.partition(".")[2])
    if other is not None and key not in fields:
        other = f"{key.partition('.')[0]}.{other}"
        key = other if other in fields else key
    return single(fields.number(key, *THETAS, default))


def longest_context(rope: RopeSpec, context: int) -> int:
    """Tokens the model was made for: a file may state the context before yarn extends it."""
    if rope.kind != "yarn":
        return context
    return max(context, int(min(rope.original_max_position * rope.factor, MAX_POSITION)))


def single(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 1e-05, where the file's number is
    9.999999747378752e-06. It is the number that was meant, and the one in the model's config.json."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 9))
    return next((float(text) for text in texts if _float32(float(text)) == _float32(value)), value)


def _float32(value: float) -> float:
    """Rounded to single precision; a value beyond its range stays (a file may store doubles)."""
    with contextlib.suppress(OverflowError):
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    return value


def _linear_factor(fields: Fields, at: str, kind: str) -> float:
    if kind == "linear":
        return single(fields.number(at + "rope.scaling.factor", *FACTORS))
    if kind == "none" and at + "rope.scale_linear" in fields:
        return single(fields.number(at + "rope.scale_linear", *FACTORS))
    return 1.0


def _yarn(fields: Fields, at: str, rope: RopeSpec, original: int, amplitude: float) -> RopeSpec:
    at += "rope.scaling."
    factor = single(fields.number(at + "factor", *FACTORS))
    if rope.theta <= 1:
        raise ModelFileError(f"{fields.label}: yarn needs a freq_base above 1, not {rope.theta}")
    for key, neutral in (("yarn_ext_factor", 1.0), ("yarn_log_multiplier", 0.0)):
        if fields.get(at + key) not in (None, neutral):
            raise fields.error(at + key, f"{neutral}; others are not supported")
    fast = single(fields.number(at + "yarn_beta_fast", *TURNS, 32.0))
    slow = single(fields.number(at + "yarn_beta_slow", *TURNS, 1.0))
    given = 0.1 * math.log(max(factor, 1.0)) + 1.0  # YaRN, section 3.4
    if at + "yarn_attn_factor" in fields:
        given = single(fields.number(at + "yarn_attn_factor", *FACTORS))
    return RopeSpec(
        rope.theta,
        rope.dim,
        "yarn",
        factor=factor,
        original_max_position=original,
        attention_factor=amplitude * given,
        beta_fast=fast,
        beta_slow=slow,
    )


def _read_factors(header: GgufHeader, name: str, dim: int, label: str) -> tuple[float, ...]:
    """A tensor of divisors of the rotary frequencies, [dim / 2]."""
    tensor = header.tensors.get(name)
    if tensor is None:
        raise ModelFileError(f"{label}: tensor {name} is missing")
    if tensor.format != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_FACTORS:
        raise ModelFileError(
            f"{label}: {name} is {tensor.format} {list(tensor.shape)}; it must be a vector in F32"
        )
    raw = bytearray(tensor.nbytes)
    tensor.file.read_into(memoryview(raw), tensor.offset)
    low, high = FACTORS
    factors: tuple[float, ...] = struct.unpack(f"<{tensor.shape[0]}f", raw)
    if len(factors) != dim // 2 or not all(low <= factor <= high for factor in factors):
        raise ModelFileError(f"{label}: {name} must hold {dim // 2} numbers from {low:g} to {high:g}")
    return factors


def _refuse_twice(label: str, name: str, scaled: bool) -> None:
    if scaled:
        raise ModelFileError(f"{label}: {name} together with another scaling is not supported")
