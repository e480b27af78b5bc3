"""Panels read back are the numbers that were laid out, for every format and shape."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.packing import ROW_FORMATS, random_packed, ungated
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.planner.packed import PackedFormat

SHAPES = [(1, 1), (32, 32), (33, 40), (70, 96), (16, 577)]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("form", ROW_FORMATS)
def test_a_packed_matrix_stands_for_its_numbers(form: PackedFormat, shape: tuple[int, int]) -> None:
    packed = random_packed(form, *shape)
    np.testing.assert_array_equal(packed.matrix.dequantize().numpy(), packed.numbers)


@pytest.mark.parametrize("scale_bytes", [2, 4])
@pytest.mark.parametrize("form", [each for each in ROW_FORMATS if each.scaled])
def test_groups_may_share_a_scale(form: PackedFormat, scale_bytes: int) -> None:
    packed = random_packed(form, 40, 200, scale_every=4, scale_bytes=scale_bytes)
    np.testing.assert_array_equal(packed.matrix.dequantize().numpy(), packed.numbers)


def test_some_panels_of_a_matrix_are_a_matrix() -> None:
    packed = random_packed(PackedFormat.INT8, 70, 64)
    part = packed.matrix.panels(1, 3)
    assert part.shape.rows == 38
    np.testing.assert_array_equal(part.dequantize().numpy(), packed.numbers[32:])
    assert part.data.data_ptr() == packed.matrix.data[1].data_ptr()


def test_gate_and_up_come_apart() -> None:
    packed = random_packed(PackedFormat.INT4, 96, 32)
    gated = PackedMatrix(packed.matrix.shape, packed.matrix.data, gated=True)
    for half, expected in zip(gated.halves(), ungated(packed.numbers), strict=True):
        torch.testing.assert_close(half, torch.from_numpy(expected.copy()), rtol=0, atol=0)
