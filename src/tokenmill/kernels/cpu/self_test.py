"""Whether a packed matrix still multiplies as the one it was made from."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.planner.packed import PANEL, PackedFormat

# Numbers that are read back at once.
_BLOCK_NUMBERS = 1 << 20
# Outputs of less than this share of the mean power are held to this share: rows of tokens that were never
# trained may be too small for any scale.
_UNHEARD = 1e-4


@dataclass(frozen=True)
class Fidelity:
    """Signal to noise of products in decibels: inf where they are equal, -inf where one is no number.

    Attributes:
        whole: over all outputs.
        worst_row: of the output that is least like its own: what is wrong with a single scale shows here.
    """

    whole: float
    worst_row: float

    def __str__(self) -> str:
        return f"{self.whole:.1f} dB, worst output {self.worst_row:.1f} dB"


# What intact matrices are well above. Kept numbers differ by the rounding of a float32 at most. Eight bits
# keep 42 dB of the whole, four bits made of numbers 21; outputs that nearly cancel keep 10 dB less.
KEPT_GATE = Fidelity(60, 60)
GATE = Fidelity(20, 20)
NARROW_GATE = Fidelity(15, 0)


def passes(packed: PackedMatrix, found: Fidelity) -> bool:
    """Whether what `check` found is as good as the format of the matrix allows."""
    gate = NARROW_GATE if packed.shape.format is PackedFormat.INT4_OFFSET else GATE
    if packed.exact:
        gate = KEPT_GATE
    return found.whole >= gate.whole and found.worst_row >= gate.worst_row


@torch.no_grad()
def check(packed: PackedMatrix, weight: torch.Tensor, activations: torch.Tensor) -> Fidelity:
    """Products of `activations` [tokens, columns] with a packed matrix, held against those with `weight`.

    Args:
        weight: [rows, columns], any float type; of a gated matrix all of gate, then all of up.

    Raises:
        ValueError: the weight is not of the matrix's shape.
    """
    _same_shape(packed, weight)
    x = activations.float()
    step = max(1, _BLOCK_NUMBERS // packed.shape.columns // PANEL)
    signals, noises = [], []
    for start in range(0, packed.shape.panels, step):
        part = packed.panels(start, min(start + step, packed.shape.panels))
        for found, expected in _pairs(part, start, weight, packed.gated):
            reference = x @ expected.float().T
            signals.append(reference.double().square_().sum(dim=0))
            noises.append((x @ found[: len(expected)].T).sub_(reference).double().square_().sum(dim=0))
    signal, noise = torch.cat(signals), torch.cat(noises)
    heard = signal.clamp_min(float(signal.mean()) * _UNHEARD)
    ratio = torch.where(noise > 0, heard / noise, torch.where(noise == 0, torch.inf, 0.0))
    return Fidelity(_decibels(float(signal.sum()), float(noise.sum())), 10 * _log10(float(ratio.min())))


def _pairs(
    part: PackedMatrix, panel: int, weight: torch.Tensor, gated: bool
) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Numbers of some panels from `panel` on, and the rows of the weight they stand for."""
    if not gated:
        start = panel * PANEL
        return [(part.dequantize(), weight[start : start + part.shape.rows])]
    start, count = panel * PANEL // 2, part.shape.rows // 2
    sides = weight.chunk(2)
    return [(half, side[start : start + count]) for half, side in zip(part.halves(), sides, strict=True)]


def _same_shape(packed: PackedMatrix, weight: torch.Tensor) -> None:
    rows, columns = weight.shape
    padded = 2 * (-(-rows // 32) * 16) if packed.gated else rows
    if (padded, columns) != (packed.shape.rows, packed.shape.columns):
        held = [packed.shape.rows, packed.shape.columns]
        raise ValueError(
            f"a weight of {list(weight.shape)} is not what a packed matrix of {held} was made from"
        )


def _decibels(signal: float, noise: float) -> float:
    return math.inf if noise == 0 else 10 * _log10(signal / noise)


def _log10(ratio: float) -> float:
    return math.log10(ratio) if ratio > 0 else -math.inf
