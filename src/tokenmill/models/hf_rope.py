"""The rotary embeddings a config.json describes: `rope_parameters` (transformers 5), or `rope_theta`,
`rope_scaling` and `rope_local_base_freq` (before)."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import Family
from tokenmill.models.fields import MAX_POSITION, Fields
from tokenmill.models.rope import FACTORS, THETAS, TURNS, longrope_attention_factor, yarn_attention_factor
from tokenmill.models.spec import RopeSpec

KINDS = ("default", "linear", "dynamic", "yarn", "llama3", "longrope")


def read_rope(
    config: Fields, family: Family, head_dim: int, max_position: int, *, local: bool = False
) -> RopeSpec:
    """The rotary embedding of the layers.

    Args:
        local: those with a window, where the family tells them apart.
        max_position: `max_position_embeddings`.

    Raises:
        ModelFileError: an unknown kind, or a value that cannot be used.
    """
    scaling = _parameters(config, family, local=local)
    beside = config.number("rope_local_base_freq" if local else "rope_theta", *THETAS)
    theta = scaling.number("rope_theta", *THETAS, beside)
    dim = _rotated(config, scaling, family, head_dim)
    name = scaling.text("rope_type", scaling.text("type", "default"))
    source = _Source(config, scaling, theta, dim, max_position)
    match family.rope_names.get(name, name):
        case "default":
            return RopeSpec(theta, dim)
        case "linear":
            return RopeSpec(theta, dim, "linear", factor=source.factor())
        case "dynamic":
            return _dynamic(source)
        case "yarn":
            return _yarn(source)
        case "llama3":
            return _llama3(source)
        case "longrope":
            return _longrope(source)
    raise ModelFileError(
        f"config.json: rope type {show(name)} is not supported; supported are {', '.join(KINDS)}"
    )


def served_positions(rope: RopeSpec, family: Family, max_position: int) -> int:
    """The longest context a model can be served at, in tokens.

    By convention `max_position_embeddings` is what the model was trained at, and a scaled rotary embedding
    reaches further; longrope and llama3 have it counted in, and so has Gemma.
    """
    reach = float(max_position)
    if rope.kind in ("linear", "dynamic") and not family.local_rope:
        reach = max_position * rope.factor
    elif rope.kind == "yarn":
        reach = max(reach, rope.original_max_position * rope.factor)
    return max(1, min(int(reach), MAX_POSITION))


@dataclass(frozen=True)
class _Source:
    """What is known when a kind's own values are read."""

    config: Fields
    scaling: Fields
    theta: float
    dim: int
    max_position: int

    def factor(self, default: float | None = None) -> float:
        return self.scaling.number("factor", *FACTORS, default)

    def original(self) -> int:
        """Positions before scaling. Phi-3 has them beside the other keys, and there they count first."""
        given = self.scaling.integer("original_max_position_embeddings", 1, MAX_POSITION, self.max_position)
        return self.config.integer("original_max_position_embeddings", 1, MAX_POSITION, given)


def _parameters(config: Fields, family: Family, *, local: bool) -> Fields:
    if "rope_parameters" not in config:
        return Fields(config.label, {}) if local else config.nested("rope_scaling")
    given = config.nested("rope_parameters")
    if family.local_rope:
        return given.nested("sliding_attention" if local else "full_attention")
    if "full_attention" in given or "sliding_attention" in given:
        raise config.error("rope_parameters", "the same for all layers in this architecture")
    return given


def _rotated(config: Fields, scaling: Fields, family: Family, head_dim: int) -> int:
    """How many components of a head are rotated."""
    key = "partial_rotary_factor"
    share = scaling.positive(key, config.positive(key, 1.0))
    if share != 1 and not family.partial_rotary:
        raise ModelFileError(f"config.json: {key} {share} is not supported; supported is 1")
    dim = int(head_dim * share) if share <= 1 else 0
    if dim < 2 or dim % 2:
        raise ModelFileError(
            f"config.json: {key} is {share}; it must take an even number of a head's {head_dim} components"
        )
    return dim


def _dynamic(source: _Source) -> RopeSpec:
    if source.dim == 2:
        raise ModelFileError("config.json: rope type dynamic needs more than 2 rotated components a head")
    return RopeSpec(
        source.theta,
        source.dim,
        "dynamic",
        factor=source.factor(),
        original_max_position=source.max_position,
    )


def _yarn(source: _Source) -> RopeSpec:
    scaling, original = source.scaling, source.original()
    if source.theta <= 1:
        raise ModelFileError(f"config.json: rope_theta is {source.theta}; with yarn it must be above 1")
    factor = source.factor(source.max_position / original)
    mscale, mscale_all_dim = (scaling.number(k, 0, FACTORS[1], 0.0) for k in ("mscale", "mscale_all_dim"))
    by_default = yarn_attention_factor(factor, mscale, mscale_all_dim)
    return RopeSpec(
        source.theta,
        source.dim,
        "yarn",
        factor=factor,
        original_max_position=original,
        attention_factor=scaling.number("attention_factor", *FACTORS, by_default),
        beta_fast=scaling.number("beta_fast", *TURNS, 32.0),
        beta_slow=scaling.number("beta_slow", *TURNS, 1.0),
        truncate=scaling.flag("truncate", True),
    )


def _llama3(source: _Source) -> RopeSpec:
    scaling = source.scaling
    low, high = (scaling.number(f"{end}_freq_factor", *FACTORS) for end in ("low", "high"))
    if low >= high:
        raise scaling.error("low_freq_factor", f"below high_freq_factor, {high}")
    return RopeSpec(
        source.theta,
        source.dim,
        "llama3",
        factor=source.factor(),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=source.original(),
    )


def _longrope(source: _Source) -> RopeSpec:
    scaling, original, pairs = source.scaling, source.original(), source.dim // 2
    by_default = longrope_attention_factor(source.factor(source.max_position / original), original)
    return RopeSpec(
        source.theta,
        source.dim,
        "longrope",
        original_max_position=original,
        factors=scaling.numbers("short_factor", pairs, *FACTORS),
        long_factors=scaling.numbers("long_factor", pairs, *FACTORS),
        attention_factor=scaling.number("attention_factor", *FACTORS, by_default),
    )
