"""Stored matrices into panels: their own codes where the format holds them, new ones where it does not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.cpu.panels import NUMBERS, ZERO, Coded, Lanes, lay_out
from tokenmill.kernels.cpu.quantize import to_int4, to_int8
from tokenmill.kernels.memory import committed
from tokenmill.models.grouped import Grouped
from tokenmill.models.weights import WeightFile
from tokenmill.planner.packed import GROUP, PANEL, PackedFormat
from tokenmill.planner.packing import Packing, Quantization, gated_packing, gated_rows, packing_of, runs

# Numbers that are packed at once: they stay in the cache, and bound the memory taken beside the matrix.
_BLOCK_NUMBERS = 1 << 19

Source = Grouped | torch.Tensor


def pack_named(
    weights: WeightFile, names: Sequence[str], wanted: Quantization, *, gated: bool = False
) -> list[PackedMatrix]:
    """Matrices of a file, packed as the planner plans them: rows one after another, or gate and up in turn.

    Returns:
        One matrix for each run of sources that are packed alike; exactly one with `gated`.

    Raises:
        ModelFileError: as `WeightFile.load`.
    """
    packings = [packing_of(weights.tensors[name], wanted) for name in names]
    if gated:
        packing = gated_packing(packings[0], packings[1])
        return [pack([_read(weights, name, packing) for name in names], packing, gated=True)]
    return [
        pack([_read(weights, name, packings[run.start]) for name in names[run]], packings[run.start])
        for run in runs(packings)
    ]


def pack(sources: Sequence[Source], packing: Packing, *, gated: bool = False) -> PackedMatrix:
    """Matrices with the same columns as one.

    Stored codes are kept wherever they fit the packing; `exact` of the result says whether all did.

    Raises:
        ValueError: sources differ in columns, or gated ones in shape.
    """
    sizes = [_size(source) for source in sources]
    if len({size if gated else size[1] for size in sizes}) != 1 or (gated and len(sizes) != 2):
        raise ValueError(f"matrices of {sizes} cannot be packed as one{' gated one' if gated else ''}")
    rows = gated_rows(sizes[0][0]) if gated else sum(size[0] for size in sizes)
    shape = packing.shape(rows, sizes[0][1])
    data = committed((shape.panels, shape.panel_bytes), torch.uint8)
    exact, first = True, 0
    step = max(1, _BLOCK_NUMBERS // shape.columns // PANEL) * PANEL
    for place, (source, (count, _)) in enumerate(zip(sources, sizes, strict=True)):
        lanes = Lanes(place * PANEL // 2, PANEL // 2) if gated else Lanes()
        kept = _kept(source, packing)
        exact = exact and kept
        for start in range(0, count, step):
            part = _rows(source, start, start + step)
            coded = _stored(part, packing.format) if kept else _rounded(part, packing.format)
            lay_out(shape, coded, data, first + start, lanes)
        first += 0 if gated else count
    return PackedMatrix(shape, data, gated, exact)


def _read(weights: WeightFile, name: str, packing: Packing) -> Source:
    """Codes where there are some and some are wanted, else numbers in a type that holds them."""
    grouped = weights.grouped(name) if packing.format.scaled else None
    if grouped is not None:
        return grouped
    kinds = {"BF16": torch.bfloat16, "F16": torch.float16}
    return weights.load(name, kinds.get(weights.tensors[name].format, torch.float32))


def _kept(source: Source, packing: Packing) -> bool:
    """Whether the packing holds exactly what is stored.

    Of scales that is the planner's promise: it asks for float32 where float16 may not hold them.
    """
    form = packing.format
    if isinstance(source, torch.Tensor):
        return form is PackedFormat.F32 or (form is PackedFormat.BF16 and source.dtype is torch.bfloat16)
    if not form.scaled or source.column_groups is not None:
        return False
    shape = packing.shape(*_size(source))
    alike = source.group == packing.scale_every * GROUP or shape.scales == source.scales.shape[1] == 1
    bits = 4 if form in (PackedFormat.INT4, PackedFormat.INT4_OFFSET) else 8
    if not form.offset:
        # Codes that are not signed go up by half the range.
        bits -= 0 if source.codes.dtype is torch.int8 else 1
        return alike and source.bits <= bits and source.symmetric
    return alike and source.bits <= bits


def _stored(source: Source, form: PackedFormat) -> Coded:
    """The stored codes, unsigned, about the format's zero point or with offsets."""
    if isinstance(source, torch.Tensor):
        return Coded(source.to(NUMBERS[form]))
    signed = source.codes.dtype is torch.int8
    shift = {PackedFormat.INT4_OFFSET: 8, PackedFormat.INT8_OFFSET: 128}.get(form, 0) if signed else 0
    codes = source.codes.view(torch.uint8) + (shift or ZERO.get(form, 0))  # signed ones wrap around
    if not form.offset:
        return Coded(codes, source.scales)
    offsets = torch.zeros_like(source.scales) if source.offsets is None else source.offsets
    zeros = shift if source.zeros is None else source.zeros.float() + shift
    return Coded(codes, source.scales, offsets - source.scales * zeros)


def _rounded(source: Source, form: PackedFormat) -> Coded:
    """New codes for the numbers, or the numbers themselves."""
    numbers = source.dequantize() if isinstance(source, Grouped) else source
    if form is PackedFormat.INT8:
        return to_int8(numbers)
    if form is PackedFormat.INT4_OFFSET:
        return to_int4(numbers)
    if form in NUMBERS:
        return Coded(numbers.to(NUMBERS[form]))
    raise ValueError(f"numbers are not rounded to {form.name}")


def _size(source: Source) -> tuple[int, int]:
    rows, columns = source.codes.shape if isinstance(source, Grouped) else source.shape
    return rows, columns


def _rows(source: Source, start: int, stop: int) -> Source:
    if isinstance(source, torch.Tensor):
        return source[start:stop]
    return replace(
        source,
        codes=source.codes[start:stop],
        scales=source.scales[start:stop],
        zeros=None if source.zeros is None else source.zeros[start:stop],
        offsets=None if source.offsets is None else source.offsets[start:stop],
    )
