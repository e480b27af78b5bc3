"""AWQ checkpoints of version GEMM: four-bit codes, eight in a word, along the rows of the matrix.

A matrix [rows, columns] is stored transposed: `qweight` [columns, rows / 8], `qzeros` [groups, rows / 8],
`scales` [groups, rows]. Within a word the codes of rows 0 to 7 lie at nibbles 0, 4, 1, 5, 2, 6, 3, 7.
A number is (code - zero) * scale.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.models.packed_layout import PackedLayout
from tokenmill.models.quantized.config import AwqConfig
from tokenmill.models.quantized.matrix import BLOCK_NUMBERS, PackedMatrix
from tokenmill.models.quantized.members import Module, read_scales
from tokenmill.models.quantized.unpack import unpack
from tokenmill.models.stored_weights import StoredTensor
from tokenmill.models.tensor_info import Grouping, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

PARTS = frozenset({"qweight", "qzeros", "scales"})
BITS = 4
_MIDDLE = 8


def open_awq(module: Module, config: AwqConfig) -> PackedMatrix:
    """
    Raises:
        ModelFileError: a tensor is missing or does not fit the others.
    """
    columns, words = module.member("qweight", 2).info.shape
    shape = (words * 8, columns)
    # Without zero points the middle is meant; some writers store it all the same.
    zeros = config.zeros or "qzeros" in module.tensors
    layout = PackedLayout("AWQ", BITS, config.group, zeros, scale_type=module.scale_type("scales"))
    module.check(layout, shape)
    tensors, group = module.tensors, config.group or columns
    centred = not zeros or module.holds_only("qzeros", _MIDDLE * 0x11)
    grouping = Grouping(BITS, group, offsets=not centred, half=centred and layout.scale_type == "F16")
    info = TensorInfo(f"{module.name}.weight", shape, layout.name, layout.nbytes(shape), grouping)
    packing = _Awq(tensors["qweight"], tensors["scales"], tensors["qzeros"] if zeros else None)
    return PackedMatrix(info, packing, BITS, group)


@dataclass(frozen=True)
class _Awq:
    qweight: StoredTensor
    scale: StoredTensor
    qzeros: StoredTensor | None

    def codes(self, rows: slice) -> Iterator[tuple[slice, slice, Tensor]]:
        columns, words = self.qweight.info.shape
        step = max(1, BLOCK_NUMBERS // (words * 8))
        for start in range(0, columns, step):
            count = min(step, columns - start)
            codes = _in_order(self.qweight.raw(start, count))[:, rows].T
            yield slice(0, codes.shape[0]), slice(start, start + count), codes

    def scales(self, rows: slice) -> Tensor:
        return read_scales(self.scale)[:, rows].T

    def zeros(self, rows: slice) -> Tensor:
        import torch

        if self.qzeros is None:
            groups = self.scale.info.shape[0]
            return torch.full((rows.stop - rows.start, groups), _MIDDLE, dtype=torch.uint8)
        groups = self.qzeros.info.shape[0]
        return _in_order(self.qzeros.raw(0, groups))[:, rows].T


def _in_order(words: Tensor) -> Tensor:
    """Codes by row of the matrix: uint8 [n, words * 4] to [n, words * 8].

    Nibbles 0 to 3 hold the even rows of a word, 4 to 7 the odd ones.
    """
    nibbles = unpack(words, BITS).view(words.shape[0], -1, 2, 4)
    return nibbles.transpose(2, 3).flatten(1)
