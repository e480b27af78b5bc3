"""Matrices as the native kernels hold them."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tokenmill.planner.packed import PackedShape


@dataclass(frozen=True)
class PackedMatrix:
    """A matrix in panels; see native/abi.h for the layout.

    Attributes:
        data: [panels, panel bytes], uint8, aligned to 64 bytes.
        gated: rows of gate and up alternate, 16 by 16, each half padded to a multiple of 16.
    """

    shape: PackedShape
    data: torch.Tensor
    gated: bool = False
