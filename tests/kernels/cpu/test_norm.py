"""The native norm of the residual stream, against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from support.native import LEVEL_NAMES, LEVELS, Machine, plain_step, sqnr_db
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import OpKind, RowsAs, TmOp

EPS = 1e-5
WIDTHS = [1, 16, 31, 32, 40, 64, 100, 896, 1000]

levels = pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)


def rms_norm(x: np.ndarray, weight: np.ndarray) -> np.ndarray:
    x = x.astype(np.float64)
    normed: np.ndarray = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + EPS) * weight
    return normed


class NormCase:
    """A norm of random rows; `run` gives the machine after a step."""

    def __init__(self, rows: int, hidden: int, *, seed: int = 0) -> None:
        random = np.random.default_rng(seed)
        self.stream = random.normal(0, 3, (rows, hidden)).astype(np.float32)
        self.branch = random.normal(1, 2, (rows, hidden)).astype(np.float32)
        self.weight = random.uniform(0.5, 1.5, hidden).astype(np.float32)
        self.branch_weight = random.uniform(0.5, 1.5, hidden).astype(np.float32)

    def run(
        self,
        isa: Isa,
        *,
        rows: slice = slice(None),
        add: bool = False,
        norm_branch: bool = False,
        rows_as: RowsAs = RowsAs.INT8,
        threads: int = 2,
        extra: int = 3,
    ) -> Machine:
        stream = self.stream[rows]
        count, hidden = stream.shape
        op = TmOp(
            kind=OpKind.NORM,
            rows_as=rows_as,
            weight=self.weight.ctypes.data,
            branch=self.branch_weight.ctypes.data if norm_branch else None,
            eps=EPS,
            add_branch=add,
            keep=1,
        )
        machine = Machine(
            isa,
            [op],
            count,
            hidden,
            hidden + extra,
            hidden,
            threads=threads,
            row_bytes=2 if rows_as is RowsAs.BF16 else 1,
        )
        machine.floats("stream", hidden)[:] = stream
        machine.floats("branch", hidden)[:] = self.branch[rows]
        machine.floats("wide", hidden + extra)[:] = 77
        machine.run(plain_step(count))
        return machine


def halves(machine: Machine, columns: int) -> np.ndarray:
    """bfloat16 rows 0 as float32, [rows, columns]."""
    start, width = machine.shape.offsets()["rows0.codes"], -(-columns // 32) * 32
    bits = machine.arena[start : start + machine.rows * width * 2].view(np.uint16).astype(np.uint32) << 16
    return bits.view(np.float32).reshape(machine.rows, width)


@levels
@pytest.mark.parametrize("hidden", WIDTHS)
@pytest.mark.parametrize("rows", [1, 5])
def test_stream_is_normed(isa: Isa, hidden: int, rows: int) -> None:
    case = NormCase(rows, hidden)
    machine = case.run(isa)
    expected = rms_norm(case.stream, case.weight)
    kept = machine.floats("wide", hidden + 3)
    np.testing.assert_allclose(kept[:, :hidden], expected, rtol=2e-6, atol=1e-6)
    assert (kept[:, hidden:] == 77).all()  # nothing past a row
    assert sqnr_db(expected, machine.numbers(0, hidden)) >= 30
    assert (machine.codes(0, hidden)[:, hidden:] == 0).all()
    assert (machine.floats("stream", hidden) == case.stream).all()


@levels
@pytest.mark.parametrize("hidden", [40, 896])
def test_branch_is_added_first(isa: Isa, hidden: int) -> None:
    case = NormCase(3, hidden)
    machine = case.run(isa, add=True)
    added = case.stream + case.branch
    assert (machine.floats("stream", hidden) == added).all()
    expected = rms_norm(added, case.weight)
    np.testing.assert_allclose(machine.floats("wide", hidden + 3)[:, :hidden], expected, rtol=2e-6, atol=1e-6)
    assert sqnr_db(expected, machine.numbers(0, hidden)) >= 30


@levels
@pytest.mark.parametrize("hidden", [40, 896])
def test_branch_is_normed_before_it_is_added(isa: Isa, hidden: int) -> None:
    case = NormCase(3, hidden)
    machine = case.run(isa, norm_branch=True)
    added = case.stream + rms_norm(case.branch, case.branch_weight)
    np.testing.assert_allclose(machine.floats("stream", hidden), added, rtol=2e-6, atol=2e-6)
    expected = rms_norm(added, case.weight)
    np.testing.assert_allclose(machine.floats("wide", hidden + 3)[:, :hidden], expected, rtol=5e-6, atol=2e-6)
    assert sqnr_db(expected, machine.numbers(0, hidden)) >= 30


@levels
@pytest.mark.parametrize("hidden", [40, 896])
def test_bfloat16_rows_are_the_kept_numbers_rounded(isa: Isa, hidden: int) -> None:
    machine = NormCase(3, hidden).run(isa, rows_as=RowsAs.BF16)
    kept = machine.floats("wide", hidden + 3)[:, :hidden]
    rounded = torch.from_numpy(kept.copy()).bfloat16().float().numpy()
    found = halves(machine, hidden)
    assert (found[:, :hidden] == rounded).all()
    assert (found[:, hidden:] == 0).all()


@levels
@pytest.mark.parametrize("hidden", [40, 896])
def test_a_row_is_the_same_alone_and_on_any_number_of_threads(isa: Isa, hidden: int) -> None:
    case = NormCase(5, hidden)
    together = case.run(isa, norm_branch=True)
    for threads in (1, 3):
        again = case.run(isa, norm_branch=True, threads=threads)
        assert (again.arena == together.arena).all()
    for row in range(5):
        alone = case.run(isa, norm_branch=True, rows=slice(row, row + 1))
        assert (alone.floats("wide", hidden + 3)[0] == together.floats("wide", hidden + 3)[row]).all()
        assert (alone.floats("stream", hidden)[0] == together.floats("stream", hidden)[row]).all()
        assert (alone.numbers(0, hidden)[0] == together.numbers(0, hidden)[row]).all()


@levels
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("place", [0, 17, 39])
def test_a_row_that_is_not_finite_shows_in_every_group(isa: Isa, bad: float, place: int) -> None:
    case = NormCase(3, 40)
    case.stream[1, place] = bad
    numbers = case.run(isa).numbers(0, 40)
    assert np.isnan(numbers[1]).all()
    assert np.isfinite(numbers[[0, 2]]).all()


@levels
def test_a_step_of_no_tokens_changes_nothing(isa: Isa) -> None:
    machine = NormCase(2, 40).run(isa)
    before = machine.arena.copy()
    machine.run(plain_step(0))
    assert (machine.arena == before).all()
