"""The tables of rotary angles a program looks positions up in."""

from __future__ import annotations

import torch

from tokenmill.kernels.program import Rotary
from tokenmill.models.rope import inverse_frequencies
from tokenmill.models.spec import RopeSpec


def rotary_table(rope: RopeSpec, positions: int) -> Rotary:
    """The table for contexts of up to `positions` tokens."""
    frequencies = torch.tensor(inverse_frequencies(rope, positions), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return Rotary(angles.cos() * rope.attention_factor, angles.sin() * rope.attention_factor)
