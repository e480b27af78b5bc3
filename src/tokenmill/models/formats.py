"""The bytes of every number format a weight file can hold, as data.

The quantized formats are ggml's: a row is cut into blocks of `block` numbers, each stored in
`block_bytes` bytes with its own scales. Plain formats are blocks of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tokenmill.core.errors import ModelFileError


@dataclass(frozen=True)
class Format:
    """`block` numbers take `block_bytes` bytes; a row holds whole blocks."""

    name: str
    block: int
    block_bytes: int


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        name: Format(name, block, block_bytes)
        for name, block, block_bytes in (
            ("F32", 1, 4),
            ("F16", 1, 2),
            ("BF16", 1, 2),
            ("Q4_0", 32, 18),
            ("Q4_1", 32, 20),
            ("Q5_0", 32, 22),
            ("Q5_1", 32, 24),
            ("Q8_0", 32, 34),
            ("Q2_K", 256, 84),
            ("Q3_K", 256, 110),
            ("Q4_K", 256, 144),
            ("Q5_K", 256, 176),
            ("Q6_K", 256, 210),
            ("IQ4_NL", 32, 18),
            ("IQ4_XS", 256, 136),
            ("MXFP4", 32, 17),
        )
    }
)


def nbytes(format_name: str, shape: Sequence[int]) -> int:
    """Bytes of a tensor of `shape` (rows last to first, [out, in]) in a format.

    Raises:
        ModelFileError: unknown format, or the rows are no whole number of blocks.
    """
    layout = FORMATS.get(format_name)
    if layout is None:
        raise ModelFileError(f"tensor format {format_name} is not supported; {supported_formats()}")
    row = shape[-1] if shape else 1
    if row % layout.block:
        raise ModelFileError(f"rows of {row} numbers cannot hold blocks of {layout.block} ({format_name})")
    return math.prod(shape) // layout.block * layout.block_bytes


def supported_formats() -> str:
    return "supported are " + ", ".join(FORMATS)
