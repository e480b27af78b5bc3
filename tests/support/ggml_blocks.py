"""Random ggml blocks, and matrices of codes made of them."""

from __future__ import annotations

import numpy as np
import torch

from tokenmill.models.dequantize import split
from tokenmill.models.formats import FORMATS
from tokenmill.models.grouped import Grouped

# Where a block's half-precision numbers begin; elsewhere than (0, 2).
_SCALES_AT = {"Q2_K": (80, 82), "Q3_K": (108,), "Q6_K": (208,), "MXFP4": ()}


def random_blocks(name: str, rows: int, columns: int, seed: int = 4) -> np.ndarray:
    """Any bits, but scales that are finite: the half-precision numbers of a block get small exponents."""
    layout = FORMATS[name]
    shape = (rows, columns // layout.block, layout.block_bytes)
    raw = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    for at in _SCALES_AT.get(name, (0, 2)):
        raw[..., at + 1] &= 0xBF  # the top bit of the exponent
    if name == "MXFP4":
        raw[..., 0] &= 0x7F  # a bare exponent
    return raw.reshape(rows, -1)


def random_ggml(name: str, rows: int, columns: int, seed: int = 4) -> Grouped:
    parts = split(name, torch.from_numpy(random_blocks(name, rows, columns, seed)))
    group = parts.codes.shape[-1]
    offsets = parts.offsets
    return Grouped(
        codes=parts.codes.reshape(rows, columns).contiguous(),
        scales=parts.scales.reshape(rows, columns // group).contiguous(),
        zeros=None,
        offsets=None if offsets is None else offsets.reshape(rows, columns // group).contiguous(),
        bits=FORMATS[name].bits,
        group=group,
    )
