"""The tensors that together are one quantized matrix in a safetensors file: their names, types and shapes.

The same table checks a file when it is opened and adds up the bytes of a matrix that is only planned.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

Scheme = Literal["AWQ", "GPTQ", "CT-packed", "CT-int"]

PACKED_NAMES = frozenset({"AWQ4", "GPTQ2", "GPTQ4", "GPTQ8", "CT4", "CT8"})
SCALE_TYPES = ("F16", "BF16", "F32")
_ELEMENT_BYTES: Mapping[str, int] = {"I8": 1, "F16": 2, "BF16": 2, "I32": 4, "F32": 4, "I64": 8}


@dataclass(frozen=True)
class Member:
    """One tensor of a module."""

    dtype: str
    shape: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        return math.prod(self.shape) * _ELEMENT_BYTES[self.dtype]


@dataclass(frozen=True)
class PackedLayout:
    """How a matrix [rows, columns] is spread over the tensors of its module.

    AWQ and GPTQ pack codes of `bits` into 32-bit words, of a matrix that lies transposed; compressed-tensors
    packs along the rows (CT-packed) or stores bytes (CT-int).

    Attributes:
        group: columns that share a scale; None is the whole row.
        zeros: zero points are stored.
        order: the group of each column is stored (activation order); else groups are neighbours.
        one_scale: a single scale serves the whole matrix.
        scale_type: a key of `SCALE_TYPES`.
    """

    scheme: Scheme
    bits: int
    group: int | None
    zeros: bool
    order: bool = False
    one_scale: bool = False
    scale_type: str = "F16"

    @property
    def name(self) -> str:
        """As `TensorInfo.format` gives it."""
        return f"{self.scheme.partition('-')[0]}{self.bits}"

    def groups(self, columns: int) -> int:
        """Groups of a row; `columns` is a multiple of `group`."""
        return columns // self.group if self.group else 1

    def nbytes(self, shape: tuple[int, int]) -> int:
        return sum(member.nbytes for member in self.members(shape).values())

    def members(self, shape: tuple[int, int]) -> dict[str, Member]:
        """The tensors of a matrix of `shape`, [rows, columns], by the last part of their names."""
        if self.scheme in ("AWQ", "GPTQ"):
            return self._transposed(*shape)
        return self._compressed(*shape)

    def _transposed(self, rows: int, columns: int) -> dict[str, Member]:
        groups, row_words = self.groups(columns), self._words(rows)
        if self.scheme == "AWQ":
            members = {"qweight": Member("I32", (columns, row_words))}
        else:
            members = {"qweight": Member("I32", (self._words(columns), rows))}
        members["scales"] = Member(self.scale_type, (groups, rows))
        if self.zeros:
            members["qzeros"] = Member("I32", (groups, row_words))
        if self.order:
            members["g_idx"] = Member("I32", (columns,))
        return members

    def _compressed(self, rows: int, columns: int) -> dict[str, Member]:
        scales = (1,) if self.one_scale else (rows, self.groups(columns))
        members = {"weight_scale": Member(self.scale_type, scales)}
        if self.scheme == "CT-packed":
            members["weight_packed"] = Member("I32", (rows, self._words(columns)))
            members["weight_shape"] = Member("I64", (2,))
            zeros = Member("I32", (self._words(rows), self.groups(columns)))
        else:
            members["weight"] = Member("I8", (rows, columns))
            zeros = Member("I8", scales)
        if self.zeros:
            members["weight_zero_point"] = zeros
        if self.order:
            members["weight_g_idx"] = Member("I32", (columns,))
        return members

    def _words(self, codes: int) -> int:
        """32-bit words that hold so many codes."""
        return -(-codes * self.bits // 32)
