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

    mask = (1 << bits) - 1
    return torch.stack([(words >> shift) & mask for shift in range(0, 8, bits)], -1).flatten(-2)
