"""The bytes of every number format a weight file can hold, as data.

Two kinds: `FORMATS` store a matrix in one tensor, `PackedLayout`s in several. Of `FORMATS` the quantized ones
are ggml's: a row is cut into blocks of `block` numbers, each stored in `block_bytes` bytes with its own
scales. Plain formats are blocks of one.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from tokenmill.core.errors import ModelFileError
from tokenmill.models.packed_layout import PACKED_NAMES


@dataclass(frozen=True)
class Format:
    """`block` numbers take `block_bytes` bytes, scales and all; a row holds whole blocks.

    Attributes:
        bits: of one number, or of the integer that a scale makes it; nibbles that stand for such integers
            through a table (IQ4, MXFP4) count as what the table holds.
    """

    name: str
    block: int
    block_bytes: int
    bits: int


FORMATS: Mapping[str, Format] = MappingProxyType(
    {
        name: Format(name, block, block_bytes, bits)
        for name, block, block_bytes, bits in (
            ("F32", 1, 4, 32),
            ("F16", 1, 2, 16),
            ("BF16", 1, 2, 16),
            ("Q4_0", 32, 18, 4),
            ("Q4_1", 32, 20, 4),
            ("Q5_0", 32, 22, 5),
            ("Q5_1", 32, 24, 5),
            ("Q8_0", 32, 34, 8),
            ("Q2_K", 256, 84, 2),
            ("Q3_K", 256, 110, 3),
            ("Q4_K", 256, 144, 4),
            ("Q5_K", 256, 176, 5),
            ("Q6_K", 256, 210, 6),
            ("IQ4_NL", 32, 18, 8),
            ("IQ4_XS", 256, 136, 8),
            ("MXFP4", 32, 17, 5),
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


def is_known(format_name: str) -> bool:
    """Whether a tensor in this format can be loaded."""
    return format_name in FORMATS or format_name in PACKED_NAMES


def supported_formats() -> str:
    return "supported are " + ", ".join(FORMATS)
