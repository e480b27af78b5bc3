"""Numbers to codes, with a scale for each `GROUP` columns that float16 holds."""

from __future__ import annotations

import torch
import torch.nn.functional as functional

from tokenmill.kernels.cpu.panels import Coded
from tokenmill.planner.packed import GROUP

# Shares of a group's range that four bits are first spread over: leaving out the ends serves the middle.
_SHARES = (1.0, 0.92, 0.84)


def to_int8(rows: torch.Tensor) -> Coded:
    """[rows, columns] to codes of -127 to 127 about 128."""
    groups = _grouped(rows)
    scales = _half(groups.abs().amax(dim=-1) / 127)
    codes = (groups * _inverse(scales)).round_().clamp_(-127, 127).add_(128).to(torch.uint8)
    return Coded(codes.flatten(1)[:, : rows.shape[1]], scales)


def to_int4(rows: torch.Tensor) -> Coded:
    """[rows, columns] to codes of 0 to 15 from an offset on, the best of a few ranges by squared error."""
    groups = _grouped(rows)
    low, high = groups.amin(dim=-1), groups.amax(dim=-1)
    codes, scales, offsets = torch.empty_like(groups), torch.zeros_like(low), torch.zeros_like(low)
    least = torch.full_like(low, torch.inf)
    for share in _SHARES:
        trial = _codes(groups, (high - low) * (share / 15), (low + high) / 2 - (high - low) * (share / 2))
        scale, offset = _fitted(groups, trial)
        trial = _codes(groups, scale, offset)
        error = (trial * scale[..., None] + offset[..., None]).sub_(groups).square_().sum(dim=-1)
        # What is no number is taken, and shows in every product.
        better = ~(error >= least)
        codes = torch.where(better[..., None], trial, codes)
        scales, offsets = torch.where(better, scale, scales), torch.where(better, offset, offsets)
        least = torch.where(better, error, least)
    return Coded(codes.to(torch.uint8).flatten(1)[:, : rows.shape[1]], scales, offsets)


def _codes(groups: torch.Tensor, scales: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return (groups - offsets[..., None]).mul_(_inverse(scales)).round_().clamp_(0, 15)


def _fitted(groups: torch.Tensor, codes: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scale and offset with the least squared error for given codes: the line through (code, number)."""
    code, number = codes.mean(dim=-1), groups.mean(dim=-1)
    spread = codes - code[..., None]
    variance = spread.square().sum(dim=-1)
    scales = _half((spread * groups).sum(dim=-1) / variance.clamp_min(1e-6))
    return scales, _half(number - scales * code)


def _grouped(rows: torch.Tensor) -> torch.Tensor:
    """[rows, groups, GROUP] in float32, the last group filled up with the row's last number."""
    missing = -rows.shape[1] % GROUP
    numbers = rows.float()
    if missing:
        numbers = functional.pad(numbers[None], (0, missing), mode="replicate")[0]
    return numbers.view(len(numbers), -1, GROUP)


def _half(values: torch.Tensor) -> torch.Tensor:
    """Rounded to what float16 holds."""
    return values.half().float()


def _inverse(scales: torch.Tensor) -> torch.Tensor:
    """What divides by scales; a group without one is all zeros."""
    return torch.where(scales == 0, 0.0, 1 / scales)[..., None]
