"""What each stored matrix is packed into: decided here from headers alone, obeyed by kernels/cpu/pack.py."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from tokenmill.models.tensor_info import TensorInfo
from tokenmill.planner.packed import GROUP, PackedFormat, PackedShape

Quantization = Literal["auto", "none", "int8", "int4"]

_BY_TOKEN = ("model.embed_tokens.weight", "lm_head.weight")
_ROUTER = ".mlp.gate.weight"


@dataclass(frozen=True)
class Packing:
    """How the rows of a matrix are held; the fields are those of `PackedShape`."""

    format: PackedFormat
    scale_every: int = 1
    scale_bytes: int = 2

    def shape(self, rows: int, columns: int) -> PackedShape:
        return PackedShape(self.format, rows, columns, self.scale_every, self.scale_bytes)


INT8 = Packing(PackedFormat.INT8)
# Best for numbers that have no codes yet: a group's numbers are seldom centred on zero.
INT4 = Packing(PackedFormat.INT4_OFFSET)


def packing_of(info: TensorInfo, wanted: Quantization) -> Packing:
    """What a matrix becomes under `--quantization`.

    auto keeps stored codes wherever a format holds them, and makes INT8 of whatever else there is. int8 and
    int4 want codes of that width, and keep stored ones that fit it; the embedding and the output head, whose
    every row is a token, are not rounded to less than INT8. none makes everything bfloat16. Routers of
    experts stay in float32.
    """
    if info.name.endswith(_ROUTER):
        return Packing(PackedFormat.F32)
    if wanted == "none":
        return Packing(PackedFormat.BF16)
    by_token = info.name in _BY_TOKEN
    grouping = info.grouping
    if grouping is not None and not grouping.reordered and _fits(grouping.group, info.shape[-1]):
        every, scale_bytes = -(-grouping.group // GROUP), 2 if grouping.half else 4
        if grouping.bits <= 4 and wanted != "int8":
            narrow = PackedFormat.INT4_OFFSET if grouping.offsets else PackedFormat.INT4
            return Packing(narrow, every, scale_bytes)
        if wanted != "int4" or by_token:
            byte = PackedFormat.INT8_OFFSET if grouping.offsets else PackedFormat.INT8
            return Packing(byte, every, scale_bytes)
    return INT4 if wanted == "int4" and not by_token else INT8


def runs(packings: Sequence[Packing]) -> list[slice]:
    """Neighbours that are packed alike, which together are one matrix."""
    found: list[slice] = []
    for place, packing in enumerate(packings):
        if found and packing == packings[place - 1]:
            found[-1] = slice(found[-1].start, place + 1)
        else:
            found.append(slice(place, place + 1))
    return found


def gated_packing(gate: Packing, up: Packing) -> Packing:
    """Of gate and up, which share panels: INT8 where they were stored differently."""
    return gate if gate == up else INT8


def gated_rows(inner: int) -> int:
    """Rows of gate and up in one matrix, each padded to a multiple of 16."""
    return 2 * (-(-inner // 16) * 16)


def _fits(group: int, columns: int) -> bool:
    """Scales of such groups are scales of whole groups of `GROUP` columns."""
    return group % GROUP == 0 or group == columns
