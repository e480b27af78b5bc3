"""What compressed-tensors' `quantization_config` says about weights: which modules, and how.

What it says about activations and the KV cache is about computing, not about what is stored, and is left
to the engine, which keeps both in its own type.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.fields import MAX_WIDTH, Fields
from tokenmill.models.quantized.targets import Targets

FORMATS = ("pack-quantized", "int-quantized", "naive-quantized")
MAX_GROUPS = 64


@dataclass(frozen=True)
class WeightScheme:
    """How the weights of one module are stored.

    Attributes:
        packed: in 32-bit words; else as bytes.
        bits: of a code as it is stored, 4 or 8.
        group: columns that share a scale; None is the whole row.
        one_scale: one scale for the whole matrix.
        symmetric: there are no zero points.
    """

    packed: bool
    bits: int
    group: int | None
    one_scale: bool
    symmetric: bool


@dataclass(frozen=True)
class CompressedConfig:
    """The schemes of a model, each with the modules it is meant for."""

    groups: tuple[tuple[Targets, WeightScheme], ...]
    ignored: Targets

    def scheme(self, module: str) -> WeightScheme | None:
        """Of a module by its name in the file; None where it is not quantized.

        A scheme that names the module wins over one whose pattern fits it, and that over one for its class.
        """
        if self.ignored.specificity(module):
            return None
        ranked = [(targets.specificity(module), scheme) for targets, scheme in self.groups]
        best = max(rank for rank, _ in ranked)
        return next(scheme for rank, scheme in ranked if rank == best) if best else None


def read_compressed(fields: Fields) -> CompressedConfig:
    """
    Raises:
        ModelFileError: a format, type or strategy that is not supported; the message lists what is.
    """
    # Many writers leave frozen, the step before, in compressed models; tensors that are not are refused.
    if fields.text("quantization_status", "compressed") not in ("compressed", "frozen"):
        raise fields.error(
            "quantization_status", "compressed or frozen: weights that only await it are not supported"
        )
    for key in ("transform_config", "moe_sparsity_config"):
        if fields.get(key):
            raise ModelFileError(f"{fields.label}: {key} is not supported")
    sparsity = fields.nested("sparsity_config")
    if sparsity.text("format", "dense") != "dense":
        raise sparsity.error("format", "dense; sparse weights are not supported")
    groups = fields.nested("config_groups")
    names = [str(name) for name, _ in groups.items()]
    if not 1 <= len(names) <= MAX_GROUPS:
        raise ModelFileError(f"{fields.label}: {len(names)} config_groups; 1 to {MAX_GROUPS} are allowed")
    schemes = []
    for name in names:
        group = groups.nested(name)
        if "weights" not in group:
            continue
        targets = Targets(f"{group.label}: targets", group.strings("targets"))
        schemes.append((targets, _scheme(group, fields.text("format", ""))))
    if not schemes:
        raise ModelFileError(f"{fields.label}: no group of config_groups has weights")
    return CompressedConfig(tuple(schemes), Targets(f"{fields.label}: ignore", fields.strings("ignore")))


def _scheme(group: Fields, whole_format: str) -> WeightScheme:
    # A mixed-precision model says the format by group.
    stored = group.text("format", whole_format)
    if stored not in FORMATS:
        raise ModelFileError(
            f"{group.label}: format {show(stored)} is not supported; supported are {', '.join(FORMATS)}"
        )
    weights = group.nested("weights")
    bits = weights.integer("num_bits", 1, 32, 8)
    kind = weights.text("type", "int")
    if kind != "int" or bits not in (4, 8):
        raise ModelFileError(
            f"{weights.label}: {bits}-bit weights of type {show(kind)} are not supported; supported are int "
            "weights of 4 and 8 bits"
        )
    packed = stored == "pack-quantized"
    strategy, group_size = _strategy(weights)
    symmetric = weights.flag("symmetric", True)
    if packed and strategy == "tensor" and not symmetric:
        raise weights.error("strategy", "channel or group: packed zero points have rows")
    return WeightScheme(packed, bits if packed else 8, group_size, strategy == "tensor", symmetric)


def _strategy(weights: Fields) -> tuple[str, int | None]:
    """Which numbers share a scale, and how many columns if these are groups."""
    size = weights.integer("group_size", -1, MAX_WIDTH, -1)
    inferred = "group" if size > 0 else "channel" if "group_size" in weights else "tensor"
    strategy = weights.text("strategy", inferred)
    if strategy not in ("tensor", "channel", "group"):
        raise weights.error("strategy", "tensor, channel or group; others are not supported")
    if strategy != "group":
        return strategy, None
    if size < 1:
        raise weights.error("group_size", f"from 1 to {MAX_WIDTH} with strategy group")
    return strategy, size
