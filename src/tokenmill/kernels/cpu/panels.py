"""Rows into panels and back: the layout of native/abi.h.

Whatever the format, a panel's codes are the 32-bit words of its rows, [rows, words], transposed: a word is
four bytes, four pairs of nibbles, two bfloat16 numbers or one float32.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
import torch.nn.functional as functional

from tokenmill.planner.packed import GROUP, PANEL, PackedFormat, PackedShape

_NIBBLES = (PackedFormat.INT4, PackedFormat.INT4_OFFSET)
NUMBERS = {PackedFormat.BF16: torch.bfloat16, PackedFormat.F32: torch.float32}
# The code that stands for zero where there are no offsets.
ZERO = {PackedFormat.INT8: 128, PackedFormat.INT4: 8}


@dataclass(frozen=True)
class Coded:
    """Rows of a matrix, ready to be laid out.

    Attributes:
        codes: [rows, columns]: uint8 codes, or bfloat16 or float32 numbers.
        scales: [rows, scales], float32; None where numbers are not scaled.
        offsets: like `scales`; None where the format has none.
    """

    codes: torch.Tensor
    scales: torch.Tensor | None = None
    offsets: torch.Tensor | None = None


@dataclass(frozen=True)
class Lanes:
    """The rows of each panel that a matrix fills: all of them, or one half where it is gate or up."""

    first: int = 0
    count: int = PANEL


def lay_out(shape: PackedShape, coded: Coded, data: torch.Tensor, row: int, lanes: Lanes) -> None:
    """Writes rows into `data`, [panels, panel bytes].

    Args:
        row: where the first one goes, counted over the `lanes` of all panels.
    """
    codes = functional.pad(
        coded.codes, (0, shape.groups * GROUP - shape.columns), value=ZERO.get(shape.format, 0)
    )
    parts = [(_part(shape, data, 0), _words(shape.format, codes))]
    kind = torch.float16 if shape.scale_bytes == 2 else torch.float32
    for place, values in enumerate((coded.scales, coded.offsets), start=1):
        if values is not None:
            parts.append((_part(shape, data, place).view(kind), values.to(kind)))
    for rows, panels, first, count in _segments(row, row + len(codes), lanes):
        for target, values in parts:
            inside = values[rows].view(-1, count, values.shape[1]).transpose(1, 2)
            _by_lane(target[panels])[:, :, first : first + count] = inside


def read_back(shape: PackedShape, data: torch.Tensor) -> torch.Tensor:
    """The numbers of panels, [panels * PANEL, columns] in float32."""
    stored = _by_lane(_part(shape, data, 0)).transpose(1, 2).flatten(0, 1).contiguous()
    if not shape.format.scaled:
        return stored.view(NUMBERS[shape.format]).float()[:, : shape.columns]
    codes = stored.view(torch.uint8)
    if shape.format in _NIBBLES:
        pairs = codes.view(len(codes), shape.groups, GROUP // 2)
        codes = torch.cat((pairs & 15, pairs >> 4), dim=2).flatten(1)
    numbers = codes.float().sub_(ZERO.get(shape.format, 0)).mul_(_spread(shape, data, 1))
    if shape.format.offset:
        numbers += _spread(shape, data, 2)
    return numbers[:, : shape.columns]


def _part(shape: PackedShape, data: torch.Tensor, place: int) -> torch.Tensor:
    """The codes as 32-bit words (0), the scales (1) or the offsets (2) of panels, [panels, ...]."""
    if place == 0:
        return data[:, : shape.code_bytes].view(torch.int32)
    at = shape.code_bytes + (place - 1) * shape.scales_bytes
    return data[:, at : at + shape.scales_bytes]


def _words(form: PackedFormat, codes: torch.Tensor) -> torch.Tensor:
    """[rows, columns] to int32 [rows, words]."""
    if form in _NIBBLES:
        halves = codes.reshape(len(codes), -1, 2, GROUP // 2)
        codes = (halves[:, :, 0] | (halves[:, :, 1] << 4)).flatten(1)
    return codes.contiguous().view(torch.int32)


def _spread(shape: PackedShape, data: torch.Tensor, place: int) -> torch.Tensor:
    """Scales (1) or offsets (2) of every column, [rows, padded columns]."""
    kind = torch.float16 if shape.scale_bytes == 2 else torch.float32
    stored = _part(shape, data, place).contiguous().view(kind).float()
    by_row = _by_lane(stored).transpose(1, 2).flatten(0, 1)
    return by_row.repeat_interleave(shape.scale_every * GROUP, dim=1)[:, : shape.groups * GROUP]


def _by_lane(part: torch.Tensor) -> torch.Tensor:
    """[panels, n * PANEL] to [panels, n, PANEL]."""
    return part.view(len(part), -1, PANEL)


def _segments(start: int, stop: int, lanes: Lanes) -> Iterator[tuple[slice, slice, int, int]]:
    """Cuts rows where panels begin: whole panels together, what is left of the first and the last alone.

    Gives which rows, counted from `start`, which panels, and first and number of their rows in a panel.
    """
    at = start
    while at < stop:
        lane = at % lanes.count
        left = stop - at
        count = min(lanes.count - lane, left)
        panels = left // lanes.count if count == lanes.count else 1
        panel = at // lanes.count
        rows = slice(at - start, at - start + panels * count)
        yield rows, slice(panel, panel + panels), lanes.first + lane, count
        at += panels * count
