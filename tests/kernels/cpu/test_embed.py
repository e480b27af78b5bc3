"""Rows of a packed embedding."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from support.native import LEVEL_NAMES, LEVELS, Machine, matrix_of, plain_step
from support.packing import Packed, random_packed
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import OpKind, TmOp
from tokenmill.planner.packed import PackedFormat

levels = pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
formats = pytest.mark.parametrize("format", list(PackedFormat), ids=lambda format: format.name)


def embedded(
    isa: Isa, packed: Packed, tokens: list[int], *, scale: float = 1.0, threads: int = 2
) -> np.ndarray:
    hidden = packed.numbers.shape[1]
    op = TmOp(kind=OpKind.EMBED, matrix=matrix_of(packed.matrix), scale=scale)
    machine = Machine(isa, [op], max(1, len(tokens)), hidden, hidden, hidden, threads=threads)
    step = plain_step(len(tokens))
    machine.run(dataclasses.replace(step, token_ids=np.array(tokens, dtype=np.int64)))
    return machine.floats("stream", hidden)[: len(tokens)].copy()


@levels
@formats
@pytest.mark.parametrize("shape", [(50, 40), (70, 200), (1, 1), (32, 32)])
@pytest.mark.parametrize("scales", [(1, 2), (4, 4)], ids=["each-half", "four-float"])
def test_stream_is_the_token_s_row(
    isa: Isa, format: PackedFormat, shape: tuple[int, int], scales: tuple[int, int]
) -> None:
    packed = random_packed(format, *shape, scale_every=scales[0], scale_bytes=scales[1])
    tokens = [*range(shape[0] - 1, -1, -3), 0]
    np.testing.assert_allclose(embedded(isa, packed, tokens), packed.numbers[tokens], rtol=1e-6, atol=1e-7)


@levels
@formats
def test_rows_are_scaled(isa: Isa, format: PackedFormat) -> None:
    packed = random_packed(format, 40, 64)
    expected = packed.numbers[[7, 39]] * np.float32(8)
    np.testing.assert_allclose(embedded(isa, packed, [7, 39], scale=8), expected, rtol=1e-6, atol=1e-6)


@levels
def test_every_number_of_threads_gives_the_same_rows(isa: Isa) -> None:
    packed = random_packed(PackedFormat.INT4_OFFSET, 40, 100)
    found = [embedded(isa, packed, [3, 3, 39, 0, 21], threads=threads) for threads in (1, 2, 7)]
    assert (found[0] == found[1]).all()
    assert (found[0] == found[2]).all()


@levels
def test_a_step_of_no_tokens_embeds_nothing(isa: Isa) -> None:
    assert embedded(isa, random_packed(PackedFormat.INT8, 40, 100), []).shape == (0, 100)
