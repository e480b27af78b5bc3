"""What differs from layer to layer in a config.json: windows and experts."""

from __future__ import annotations

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import ExpertsKeys, Family
from tokenmill.models.fields import MAX_EXPERTS, MAX_EXPERTS_IN_ALL, MAX_LAYERS, Fields
from tokenmill.models.spec import ExpertsSpec


def sliding_layers(config: Fields, family: Family, count: int) -> tuple[bool, ...]:
    """Which of `count` layers look back over a window only, whatever its size.

    Raises:
        ModelFileError: `layer_types` names a kind that is neither full nor sliding attention.
    """
    off = family.window_switch and not config.flag("use_sliding_window", False)
    if family.windows == "none" or off:
        return (False,) * count
    if family.windows == "all":
        return (True,) * count
    kinds = config.strings("layer_types")
    if kinds:
        return _by_name(config, kinds, count)
    if family.full_every:
        every = config.integer("sliding_window_pattern", 1, MAX_LAYERS, family.full_every)
        return tuple((number + 1) % every != 0 for number in range(count))
    first = config.integer("max_window_layers", 0, MAX_LAYERS)
    return tuple(number >= first for number in range(count))


def experts_of_layers(config: Fields, family: Family, count: int) -> tuple[ExpertsSpec | None, ...]:
    """The mixture of experts of each of `count` layers, None where it has a plain MLP."""
    keys = family.experts
    if keys is None:
        return (None,) * count
    experts = _experts(config, keys, count)
    step = config.integer("decoder_sparse_step", 1, MAX_LAYERS, 1)
    plain = config.list_of_integers("mlp_only_layers", MAX_LAYERS)
    return tuple(
        experts if (number + 1) % step == 0 and number not in plain else None for number in range(count)
    )


def _by_name(config: Fields, kinds: list[str], count: int) -> tuple[bool, ...]:
    known = {"full_attention": False, "sliding_attention": True}
    strange = [kind for kind in kinds if kind not in known]
    if strange:
        raise ModelFileError(
            f"{config.label}: layer_types holds {show(strange[0])}; supported are {' and '.join(known)}"
        )
    if len(kinds) != count:
        raise ModelFileError(f"{config.label}: layer_types has {len(kinds)} entries for {count} layers")
    return tuple(known[kind] for kind in kinds)


def _experts(config: Fields, keys: ExpertsKeys, layers: int) -> ExpertsSpec:
    key = next((key for key in keys.count if key in config), keys.count[0])
    count = config.integer(key, 1, min(MAX_EXPERTS, MAX_EXPERTS_IN_ALL // layers))
    renormalize = keys.renormalize
    if renormalize is None:
        renormalize = config.flag("norm_topk_prob", False)
    return ExpertsSpec(count, config.integer("num_experts_per_tok", 1, count), renormalize)
