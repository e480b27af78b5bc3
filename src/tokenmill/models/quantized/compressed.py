"""compressed-tensors checkpoints with integer weights, packed into words or as bytes.

Packed: `weight_packed` [rows, words] holds codes along the columns, `weight_shape` the matrix's shape,
`weight_zero_point` [words, groups] zero points along the rows; both are stored plus half their range. Bytes:
`weight` and `weight_zero_point` are int8. `weight_scale` is [rows, groups], or one number. A number is
(code - zero) * scale.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.models.packed_layout import PackedLayout
from tokenmill.models.quantized.compressed_config import WeightScheme
from tokenmill.models.quantized.matrix import BLOCK_NUMBERS, PackedMatrix
from tokenmill.models.quantized.members import Module, read_scales
from tokenmill.models.quantized.unpack import unpack
from tokenmill.models.stored_weights import StoredTensor
from tokenmill.models.tensor_info import Grouping, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

PARTS = frozenset({"weight_packed", "weight_scale", "weight_zero_point", "weight_shape", "weight_g_idx"})


def open_compressed(module: Module, scheme: WeightScheme) -> PackedMatrix:
    """
    Raises:
        ModelFileError: a tensor is missing or does not fit the others, or groups of columns are uneven.
    """
    shape = _packed_shape(module) if scheme.packed else _byte_shape(module)
    layout = PackedLayout(
        scheme="CT-packed" if scheme.packed else "CT-int",
        bits=scheme.bits,
        group=scheme.group,
        zeros=not scheme.symmetric,
        order="weight_g_idx" in module.tensors,
        one_scale=scheme.one_scale,
        scale_type=module.scale_type("weight_scale"),
    )
    module.check(layout, shape)
    group = scheme.group or shape[1]
    tensors = module.tensors
    packing = _Compressed(
        shape,
        tensors["weight_packed" if scheme.packed else "weight"],
        tensors["weight_scale"],
        tensors["weight_zero_point"] if layout.zeros else None,
        scheme,
    )
    groups = module.column_groups("weight_g_idx", shape[1], group) if layout.order else None
    grouping = Grouping(
        scheme.bits,
        group,
        offsets=layout.zeros,
        half=not layout.zeros and layout.scale_type == "F16",
        reordered=groups is not None,
    )
    info = TensorInfo(f"{module.name}.weight", shape, layout.name, layout.nbytes(shape), grouping)
    return PackedMatrix(info, packing, scheme.bits, group, groups)


def _byte_shape(module: Module) -> tuple[int, int]:
    rows, columns = module.member("weight", 2).info.shape
    return rows, columns


def _packed_shape(module: Module) -> tuple[int, int]:
    """What `weight_shape` says; `weight_packed` may end in unused bits."""
    rows, _ = module.member("weight_packed", 2).info.shape
    stored = module.member("weight_shape", 1)
    if (stored.info.format, stored.info.shape) != ("I64", (2,)):
        raise module.error("weight_shape", "must be two numbers in I64")
    raw = bytearray(16)
    stored.file.read_into(memoryview(raw), stored.offset)
    said, columns = struct.unpack("<2q", raw)
    if said != rows or columns < 1:
        raise module.error("weight_shape", f"says {[said, columns]}; weight_packed has {rows} rows")
    return said, columns


@dataclass(frozen=True)
class _Compressed:
    shape: tuple[int, int]
    weight: StoredTensor
    scale: StoredTensor
    zero_point: StoredTensor | None
    scheme: WeightScheme

    def codes(self, rows: slice) -> Iterator[tuple[slice, slice, Tensor]]:
        columns = self.shape[1]
        step = max(1, BLOCK_NUMBERS // columns)
        for start in range(rows.start, rows.stop, step):
            count = min(step, rows.stop - start)
            codes = self._signed(self.weight.raw(start, count))[:, :columns]
            yield slice(start - rows.start, start - rows.start + count), slice(0, columns), codes

    def scales(self, rows: slice) -> Tensor:
        return self._by_row(read_scales(self.scale), rows)

    def zeros(self, rows: slice) -> Tensor | None:
        import torch

        if self.zero_point is None:
            return None
        words, groups = self.zero_point.info.shape if not self.scheme.one_scale else (1, 1)
        raw = self.zero_point.raw(0, words)
        if not self.scheme.packed:
            return self._by_row(raw.view(torch.int8), rows)
        codes = self._signed(raw.view(words, groups, 4))
        return codes.transpose(1, 2).reshape(-1, groups)[rows].contiguous()

    def _signed(self, stored: Tensor) -> Tensor:
        """Codes around 0, int8, of packed words or of bytes, uint8 [..., bytes]."""
        import torch

        if not self.scheme.packed:
            return stored.view(torch.int8)
        codes = unpack(stored, self.scheme.bits)
        if self.scheme.bits == 8:
            return (codes ^ 128).view(torch.int8)
        return codes.view(torch.int8) - (1 << (self.scheme.bits - 1))

    def _by_row(self, stored: Tensor, rows: slice) -> Tensor:
        """[rows, groups] of what is stored so, or once for the whole matrix."""
        if self.scheme.one_scale:
            return stored.view(1, 1).repeat(rows.stop - rows.start, 1)
        return stored[rows]
