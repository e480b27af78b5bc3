"""Codes out of words."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import Tensor


def unpack(words: Tensor, bits: int) -> Tensor:
    """Codes of little-endian words in the order of their bits, lowest first.

    Args:
        words: uint8 [..., bytes].
        bits: of a code: 1, 2, 4 or 8, so that none crosses a byte.

    Returns:
        uint8 [..., bytes * 8 / bits].
    """
    import torch

    if bits == 8:
        return words
    shifts = torch.arange(0, 8, bits, dtype=torch.uint8)
    return ((words[..., None] >> shifts) & (1 << bits) - 1).flatten(-2)
