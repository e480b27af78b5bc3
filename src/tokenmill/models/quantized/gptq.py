"""GPTQ checkpoints: codes in words along the columns of the matrix, zero points along its rows.

A matrix [rows, columns] is stored transposed: `qweight` [columns / c, rows] where c codes fill a word,
`qzeros` [groups, rows / c], `scales` [groups, rows], `g_idx` [columns] with the group of each column. A
number is (code - zero) * scale. Version 1 stores zero points less 1.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.core.errors import ModelFileError
from tokenmill.models.packed_layout import PackedLayout
from tokenmill.models.quantized.config import GptqConfig
from tokenmill.models.quantized.matrix import BLOCK_NUMBERS, PackedMatrix
from tokenmill.models.quantized.members import Module, read_scales
from tokenmill.models.quantized.unpack import unpack
from tokenmill.models.stored_weights import StoredTensor
from tokenmill.models.tensor_info import Grouping, TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

PARTS = frozenset({"qweight", "qzeros", "scales", "g_idx"})


def open_gptq(module: Module, config: GptqConfig) -> PackedMatrix:
    """
    Raises:
        ModelFileError: a tensor is missing or does not fit the others, or groups of columns are uneven.
    """
    in_word = 32 // config.bits
    words, rows = module.member("qweight", 2).info.shape
    shape = (rows, words * in_word)
    if rows % in_word:
        raise module.error("qweight", f"has {rows} columns; they must be a multiple of {in_word}")
    order = "g_idx" in module.tensors
    if config.act_order and not order:
        raise ModelFileError(f"tensor {module.name}.g_idx is missing; desc_act is true")
    scale_type = module.scale_type("scales")
    layout = PackedLayout("GPTQ", config.bits, config.group, True, order, scale_type=scale_type)
    module.check(layout, shape)
    group = config.group or shape[1]
    tensors = module.tensors
    packing = _Gptq(tensors["qweight"], tensors["scales"], tensors["qzeros"], config)
    unused = not config.act_order
    groups = module.column_groups("g_idx", shape[1], group, unused=unused) if order else None
    centred = module.holds_only("qzeros", _middle_byte(config))
    grouping = Grouping(
        config.bits,
        group,
        offsets=not centred,
        half=centred and scale_type == "F16",
        reordered=groups is not None,
    )
    info = TensorInfo(f"{module.name}.weight", shape, layout.name, layout.nbytes(shape), grouping)
    return PackedMatrix(info, packing, config.bits, group, groups)


def _middle_byte(config: GptqConfig) -> int:
    """A byte of zero points that are all the middle of the codes' range, as it is stored."""
    stored = (1 << (config.bits - 1)) - (1 if config.version == 1 else 0)
    return sum(stored << bit for bit in range(0, 8, config.bits))


@dataclass(frozen=True)
class _Gptq:
    qweight: StoredTensor
    scale: StoredTensor
    qzeros: StoredTensor
    config: GptqConfig

    def codes(self, rows: slice) -> Iterator[tuple[slice, slice, Tensor]]:
        in_word = 32 // self.config.bits
        words, all_rows = self.qweight.info.shape
        step = max(1, BLOCK_NUMBERS // (all_rows * in_word))
        for start in range(0, words, step):
            count = min(step, words - start)
            raw = self.qweight.raw(start, count).view(count, all_rows, 4)[:, rows]
            codes = unpack(raw, self.config.bits).transpose(1, 2).flatten(0, 1).T
            yield slice(0, codes.shape[0]), slice(start * in_word, (start + count) * in_word), codes

    def scales(self, rows: slice) -> Tensor:
        return read_scales(self.scale)[:, rows].T

    def zeros(self, rows: slice) -> Tensor:
        import torch

        words = self.qzeros.raw(0, self.qzeros.info.shape[0])
        if self.config.version == 1:
            # Writers subtract from whole words, so a zero point of 0 borrows from its neighbour: the sum
            # over the word gives both back.
            one_each = sum(1 << bit for bit in range(0, 32, self.config.bits))
            words = (words.view(torch.int32) + one_each).view(torch.uint8)
        return unpack(words, self.config.bits)[:, rows].T
