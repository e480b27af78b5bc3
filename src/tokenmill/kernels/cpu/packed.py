"""Matrices as the native kernels hold them."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from tokenmill.kernels.cpu.panels import read_back
from tokenmill.planner.packed import PANEL, PackedShape


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in panels; see native/abi.h for the layout.

    Attributes:
        data: [panels, panel bytes], uint8, aligned to 64 bytes.
        gated: rows of gate and up alternate, 16 by 16, each half padded to a multiple of 16.
        exact: the numbers are those of the file; False where any was rounded to get here.
    """

    shape: PackedShape
    data: torch.Tensor
    gated: bool = False
    exact: bool = True

    def panels(self, start: int, stop: int) -> PackedMatrix:
        """Some of its panels as a matrix of their own, in the same memory."""
        rows = min(self.shape.rows, stop * PANEL) - start * PANEL
        return replace(self, shape=replace(self.shape, rows=rows), data=self.data[start:stop])

    def dequantize(self) -> torch.Tensor:
        """The numbers it stands for, [rows, columns] float32, rows as they lie: gate and up alternate."""
        return read_back(self.shape, self.data)[: self.shape.rows]

    def halves(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Gate and up of a gated matrix, each [rows / 2, columns] float32, padding included."""
        pairs = self.dequantize().view(-1, 2, PANEL // 2, self.shape.columns)
        return pairs[:, 0].flatten(0, 1), pairs[:, 1].flatten(0, 1)
