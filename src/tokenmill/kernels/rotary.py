"""The table of rotary angles a program looks positions up in."""

from __future__ import annotations

import torch

from tokenmill.models.rope import inverse_frequencies
from tokenmill.models.spec import RopeSpec


def rotary_table(rope: RopeSpec, positions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Cosines and sines of every position, each [positions, dim / 2], float32."""
    frequencies = torch.tensor(inverse_frequencies(rope), dtype=torch.float32)
    angles = torch.arange(positions, dtype=torch.float32)[:, None] * frequencies
    return angles.cos(), angles.sin()
