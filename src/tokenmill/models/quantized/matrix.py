"""A quantized matrix as one tensor, whatever its scheme: read and dequantized block by block."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

from tokenmill.models.grouped import Grouped, numbers
from tokenmill.models.tensor_info import TensorInfo

if TYPE_CHECKING:
    from torch import Tensor

# Numbers a scheme hands out at once, so that no second copy of a large matrix is ever made.
BLOCK_NUMBERS = 1 << 20


class Packing(Protocol):
    """How a scheme stores a matrix. `rows` is a range of its rows, with both ends given."""

    def codes(self, rows: slice) -> Iterator[tuple[slice, slice, Tensor]]:
        """Codes block by block: which rows (counted from the range's first) and columns, then the codes,
        uint8 or int8 [rows, columns]."""
        ...

    def scales(self, rows: slice) -> Tensor:
        """[rows, groups], float32, best in memory as the codes are.

        Raises:
            ModelFileError: one is not finite.
        """
        ...

    def zeros(self, rows: slice) -> Tensor | None:
        """[rows, groups], of the codes' type; None where codes are signed around 0."""
        ...


@dataclass(frozen=True)
class PackedMatrix:
    """A `Stored` matrix, or some rows of one.

    Attributes:
        bits: of a code.
        group: columns that share a scale.
        column_groups: the group of each column as little-endian int32, checked; None where groups are
            neighbouring columns in order.
        first: row of the whole matrix that this one begins with.
    """

    info: TensorInfo
    packing: Packing
    bits: int
    group: int
    column_groups: bytes | None = None
    first: int = 0

    def fill(self, out: Tensor) -> None:
        rows = self._rows()
        scales, zeros = self.packing.scales(rows), self.packing.zeros(rows)
        group_of = self._group_of()
        for at_rows, at_columns, codes in self.packing.codes(rows):
            of = group_of[at_columns]
            block_zeros = None if zeros is None else _spread(zeros[at_rows], of, codes)
            out[at_rows, at_columns] = numbers(codes, _spread(scales[at_rows], of, codes), block_zeros)

    def grouped(self) -> Grouped:
        import torch

        rows = self._rows()
        zeros = self.packing.zeros(rows)
        middle = 1 << (self.bits - 1)
        # Zero points that all are the middle are symmetric quantization, stored as if it were not.
        centred = zeros is not None and zeros.dtype == torch.uint8 and bool((zeros == middle).all())
        signed = zeros is None or centred or zeros.dtype == torch.int8
        result = torch.empty(self.info.shape, dtype=torch.int8 if signed else torch.uint8)
        for at_rows, at_columns, codes in self.packing.codes(rows):
            result[at_rows, at_columns] = codes.to(torch.int16) - middle if centred else codes
        return Grouped(
            codes=result,
            scales=self.packing.scales(rows).contiguous(),
            zeros=None if zeros is None or centred else zeros.contiguous(),
            offsets=None,
            bits=self.bits,
            group=self.group,
            column_groups=None if self.column_groups is None else self._group_of().int(),
        )

    def rows(self, name: str, start: int, count: int) -> PackedMatrix:
        rows, columns = self.info.shape
        nbytes = self.info.nbytes * count // rows
        info = replace(self.info, name=name, shape=(count, columns), nbytes=nbytes)
        return replace(self, info=info, first=self.first + start)

    def _rows(self) -> slice:
        return slice(self.first, self.first + self.info.shape[0])

    def _group_of(self) -> Tensor:
        """The group of each column, int64."""
        import torch

        if self.column_groups is None:
            return torch.arange(self.info.shape[1]) // self.group
        return torch.frombuffer(bytearray(self.column_groups), dtype=torch.int32).long()


def _spread(values: Tensor, of: Tensor, codes: Tensor) -> Tensor:
    """Values [rows, groups] for each column, which lie in memory as the codes do: by rows or by columns."""
    by_columns = codes.stride(0) < codes.stride(1)
    return values.T[of].T if by_columns else values[:, of]
