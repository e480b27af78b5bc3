"""Matrices packed one number at a time from the layout in native/abi.h, and the numbers they stand for."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.planner.packed import GROUP, PANEL, PackedFormat, PackedShape

ROW_FORMATS = tuple(PackedFormat)
PRODUCT_FORMATS = tuple(each for each in PackedFormat if each is not PackedFormat.F32)


@dataclass(frozen=True)
class Packed:
    """A packed matrix and `numbers`, [rows, columns] float32, what it stands for."""

    matrix: PackedMatrix
    numbers: np.ndarray


def random_packed(
    format: PackedFormat,
    rows: int,
    columns: int,
    *,
    seed: int = 0,
    scale_every: int = 1,
    scale_bytes: int = 2,
) -> Packed:
    """Random codes, scales and offsets; normal numbers where there are no codes."""
    return pack(
        np.random.default_rng(seed).standard_normal((rows, columns)).astype(np.float32) * np.float32(0.1),
        PackedShape(format, rows, columns, scale_every, scale_bytes),
    )


def pack(weight: np.ndarray, shape: PackedShape) -> Packed:
    """Rounds `weight` [rows, columns] to the format and lays it out."""
    padded = np.zeros((shape.panels * PANEL, shape.groups * GROUP), np.float32)
    padded[: shape.rows, : shape.columns] = weight
    panels = np.zeros((shape.panels, shape.panel_bytes), np.uint8)
    if shape.format.scaled:
        codes, scales, offsets = _codes(padded, shape)
        parts = [_code_bytes(codes, shape)] + [
            _by_panel(each.astype(f"<f{shape.scale_bytes}"))
            for each in ((scales, offsets) if shape.format.offset else (scales,))
        ]
        zero = {PackedFormat.INT8: 128, PackedFormat.INT4: 8}.get(shape.format, 0)
        every = GROUP * shape.scale_every
        wide = [each.repeat(every, axis=1)[:, : padded.shape[1]] for each in (scales, offsets)]
        numbers = (codes.astype(np.float32) - np.float32(zero)) * wide[0]
        if shape.format.offset:
            numbers = numbers + wide[1]
    elif shape.format is PackedFormat.BF16:
        rounded = torch.from_numpy(padded).bfloat16()
        numbers = rounded.float().numpy()
        halves = rounded.view(torch.int16).numpy().reshape(shape.panels, PANEL, -1, 2)
        parts = [_bytes(halves.transpose(0, 2, 1, 3))]
    else:
        numbers = padded
        parts = [_bytes(padded.reshape(shape.panels, PANEL, -1).transpose(0, 2, 1))]
    whole = np.concatenate(parts, axis=1)
    panels[:, : whole.shape[1]] = whole
    return Packed(
        PackedMatrix(shape, _aligned(panels)), np.ascontiguousarray(numbers[: shape.rows, : shape.columns])
    )


def gated(gate: np.ndarray, up: np.ndarray) -> np.ndarray:
    """Rows of two matrices [inner, columns] in turn, 16 by 16, each padded with zeros to a multiple of 16."""
    inner = -(-len(gate) // 16) * 16
    both = np.zeros((2, inner, gate.shape[1]), np.float32)
    both[:, : len(gate)] = gate, up
    return both.reshape(2, -1, 16, gate.shape[1]).transpose(1, 0, 2, 3).reshape(2 * inner, -1)


def ungated(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """What `gated` put together, padding included."""
    parts = weight.reshape(-1, 2, 16, weight.shape[1]).transpose(1, 0, 2, 3).reshape(2, -1, weight.shape[1])
    return parts[0], parts[1]


def _codes(padded: np.ndarray, shape: PackedShape) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Codes [rows, columns], and scales and offsets [rows, scales] as float32 numbers their type can hold."""
    every = GROUP * shape.scale_every
    filled = np.zeros((len(padded), shape.scales * every), np.float32)
    filled[:, : padded.shape[1]] = padded
    parts = filled.reshape(len(padded), shape.scales, every)
    kind = np.float16 if shape.scale_bytes == 2 else np.float32
    small = shape.format in (PackedFormat.INT4, PackedFormat.INT4_OFFSET)
    if shape.format.offset:
        top = 15 if small else 255
        low, high = np.minimum(parts.min(-1), 0), np.maximum(parts.max(-1), 0)
        scales = ((high - low) / top).astype(kind).astype(np.float32)
        offsets = low.astype(kind).astype(np.float32)
        codes = (parts - offsets[..., None]) / np.maximum(scales, 1e-12)[..., None]
    else:
        top, zero = (15, 8) if small else (255, 128)
        scales = (np.abs(parts).max(-1) / (zero - 1)).astype(kind).astype(np.float32)
        offsets = np.zeros_like(scales)
        codes = parts / np.maximum(scales, 1e-12)[..., None] + zero
    rounded = np.clip(np.rint(codes), 0, top).astype(np.uint8)
    return rounded.reshape(len(padded), -1)[:, : padded.shape[1]], scales, offsets


def _code_bytes(codes: np.ndarray, shape: PackedShape) -> np.ndarray:
    grouped = codes.reshape(shape.panels, PANEL, shape.groups, GROUP)
    if shape.format in (PackedFormat.INT4, PackedFormat.INT4_OFFSET):
        grouped = grouped[..., :16] | grouped[..., 16:] << 4
    fours = grouped.reshape(shape.panels, PANEL, shape.groups, -1, 4)
    return _bytes(fours.transpose(0, 2, 3, 1, 4))


def _by_panel(values: np.ndarray) -> np.ndarray:
    """[rows, scales] to [panels, bytes of scales by row]."""
    return _bytes(values.reshape(-1, PANEL, values.shape[1]).transpose(0, 2, 1))


def _bytes(panels: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(panels).view(np.uint8).reshape(len(panels), -1)


def _aligned(panels: np.ndarray) -> torch.Tensor:
    whole = np.zeros(panels.size + 64, np.uint8)
    start = -whole.ctypes.data % 64
    view = whole[start : start + panels.size].reshape(panels.shape)
    view[:] = panels
    return torch.from_numpy(view)
