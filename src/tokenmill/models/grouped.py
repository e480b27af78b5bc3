"""The one form of every group-quantized matrix: small integer codes, and a scale for each group of columns.

Whatever a file packs (ggml blocks, AWQ, GPTQ, compressed-tensors) is opened into it without a number being
quantized a second time, so that a kernel repacks from one layout.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


@dataclass(frozen=True)
class Grouped:
    """A matrix [rows, columns] whose numbers are (code - zero) * scale + offset.

    Attributes:
        codes: [rows, columns], uint8, or int8 where codes are signed.
        scales: [rows, groups], float32.
        zeros: [rows, groups], of the codes' type; None where every zero point is 0.
        offsets: [rows, groups], float32; None where every offset is 0. Never beside `zeros`.
        bits: codes take this many.
        group: columns that share a scale; columns = groups * group.
        column_groups: [columns], int32: the group of each column, each of them `group` times; None where
            groups are neighbouring columns in order.
    """

    codes: Tensor
    scales: Tensor
    zeros: Tensor | None
    offsets: Tensor | None
    bits: int
    group: int
    column_groups: Tensor | None = None

    @property
    def symmetric(self) -> bool:
        """Numbers are code * scale."""
        return self.zeros is None and self.offsets is None

    def order(self) -> Tensor | None:
        """Columns so that each group's are neighbours, [columns]; None where they are already."""
        return None if self.column_groups is None else self.column_groups.argsort(stable=True)

    def dequantize(self) -> Tensor:
        """The numbers in float32, [rows, columns], columns in the order of the matrix."""

        def spread(values: Tensor) -> Tensor:
            if self.column_groups is not None:
                return values[:, self.column_groups]
            return values.repeat_interleave(self.group, 1)

        zeros = None if self.zeros is None else spread(self.zeros)
        offsets = None if self.offsets is None else spread(self.offsets)
        return numbers(self.codes, spread(self.scales), zeros, offsets)


def numbers(
    codes: Tensor, scales: Tensor, zeros: Tensor | None = None, offsets: Tensor | None = None
) -> Tensor:
    """(codes - zeros) * scales + offsets in float32; shapes broadcast."""
    if zeros is None:
        values = codes * scales
    else:
        values = codes.float()
        values -= zeros
        values *= scales
    if offsets is not None:
        values += offsets
    return values
