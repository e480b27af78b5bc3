"""The native mixture of experts, against the formula in float64 over the numbers that are packed."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import numpy as np
import pytest

from support.native import LEVEL_NAMES, LEVELS, Machine, matrix_of, plain_step, sqnr_db
from support.packing import PRODUCT_FORMATS, Packed, gated, pack, ungated
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import Activation, OpKind, RowsAs, TmExpert, TmOp
from tokenmill.planner.arena import experts_bytes
from tokenmill.planner.packed import PackedFormat, PackedShape

levels = pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
formats = pytest.mark.parametrize("format", PRODUCT_FORMATS, ids=lambda format: format.name)


class Mixture:
    """A norm and random experts over rows of the stream."""

    def __init__(
        self,
        rows: int,
        hidden: int,
        inner: int,
        experts: int,
        active: int,
        *,
        format: PackedFormat = PackedFormat.INT8,
        renormalize: bool = False,
        activation: Activation = Activation.SILU,
    ) -> None:
        self.random = np.random.default_rng(2)
        self.hidden, self.inner, self.active = hidden, inner, active
        self.renormalize, self.activation = renormalize, activation
        self.stream = self._normal(rows, hidden) * 5
        self.norm_weight = np.ones(hidden, np.float32)
        self.router = pack(self._normal(experts, hidden), PackedShape(PackedFormat.F32, experts, hidden))
        self.gate_ups = [self._gate_up(format) for _ in range(experts)]
        self.downs = [
            pack(self._normal(hidden, inner), PackedShape(format, hidden, inner)) for _ in range(experts)
        ]
        self.experts = (TmExpert * experts)(
            *(
                TmExpert(matrix_of(gate_up.matrix), matrix_of(down.matrix))
                for gate_up, down in zip(self.gate_ups, self.downs, strict=True)
            )
        )

    def _normal(self, *shape: int) -> np.ndarray:
        return (self.random.standard_normal(shape) * 0.2).astype(np.float32)

    def _gate_up(self, format: PackedFormat) -> Packed:
        weight = gated(self._normal(self.inner, self.hidden), self._normal(self.inner, self.hidden))
        return pack(weight, PackedShape(format, *weight.shape))

    def normed(self) -> np.ndarray:
        x = self.stream.astype(np.float64)
        normed: np.ndarray = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
        return normed

    def routes(self) -> tuple[np.ndarray, np.ndarray]:
        """Weights of all experts [rows, experts], 0 where a row does not choose one, and who is chosen."""
        scores = self.normed() @ self.router.numbers.T.astype(np.float64)
        shares = np.exp(scores - scores.max(-1, keepdims=True))
        shares /= shares.sum(-1, keepdims=True)
        chosen = np.zeros(shares.shape, bool)
        ranked = np.argsort(-shares, axis=-1, kind="stable")[:, : self.active]
        np.put_along_axis(chosen, ranked, True, axis=-1)
        shares = np.where(chosen, shares, 0)
        return (shares / shares.sum(-1, keepdims=True) if self.renormalize else shares), chosen

    def expected(self) -> np.ndarray:
        x, (weights, _) = self.normed(), self.routes()
        total = np.zeros(x.shape)
        for expert, (gate_up, down) in enumerate(zip(self.gate_ups, self.downs, strict=True)):
            gate, up = (x @ part[: self.inner].T.astype(np.float64) for part in ungated(gate_up.numbers))
            inner = self._activate(gate) * up
            total += weights[:, expert, None] * (inner @ down.numbers.T.astype(np.float64))
        return total

    def _activate(self, x: np.ndarray) -> np.ndarray:
        if self.activation is Activation.SILU:
            silu: np.ndarray = x / (1 + np.exp(-x))
            return silu
        gelu: np.ndarray = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return gelu

    def machine(self, isa: Isa, rows: int, *, threads: int = 2) -> Machine:
        halves = self.gate_ups[0].matrix.shape.format is PackedFormat.BF16
        rows_as = RowsAs.BF16 if halves else RowsAs.INT8
        width = -(-max(self.hidden, self.inner) // 32) * 32
        ops = [
            TmOp(kind=OpKind.NORM, rows_as=rows_as, weight=self.norm_weight.ctypes.data, eps=1e-6, keep=1),
            TmOp(
                kind=OpKind.EXPERTS,
                rows_as=rows_as,
                activation=self.activation,
                matrix=matrix_of(self.router.matrix),
                experts=self.experts,
                n_experts=len(self.experts),
                active=self.active,
                renormalize=self.renormalize,
            ),
        ]
        row_bytes = 2 if halves else 1
        return Machine(isa, ops, rows, self.hidden, width, width, threads=threads, row_bytes=row_bytes)

    def run(self, isa: Isa, rows: Sequence[int], *, threads: int = 2) -> np.ndarray:
        """The branch, [rows, hidden]."""
        machine = self.machine(isa, len(rows), threads=threads)
        machine.floats("stream", self.hidden)[:] = self.stream[list(rows)]
        machine.floats("branch", self.hidden)[:] = 77
        machine.run(plain_step(len(rows)))
        return machine.floats("branch", self.hidden).copy()


@levels
@formats
@pytest.mark.parametrize("renormalize", [False, True])
def test_a_row_is_the_weighted_sum_of_the_experts_it_chooses(
    isa: Isa, format: PackedFormat, renormalize: bool
) -> None:
    case = Mixture(13, 64, 96, 6, 2, format=format, renormalize=renormalize)
    assert sqnr_db(case.expected(), case.run(isa, range(13))) >= 30


@levels
@pytest.mark.parametrize(
    "shape",
    [(1, 40, 17, 3, 1), (7, 33, 50, 40, 5), (5, 100, 16, 70, 70), (20, 32, 130, 1, 1)],
    ids=str,
)
@pytest.mark.parametrize("activation", list(Activation), ids=lambda activation: activation.name)
def test_sizes_that_are_no_multiple_of_anything(
    isa: Isa, shape: tuple[int, int, int, int, int], activation: Activation
) -> None:
    case = Mixture(*shape, renormalize=True, activation=activation)
    assert sqnr_db(case.expected(), case.run(isa, range(shape[0]))) >= 30


@levels
def test_of_equal_scores_the_first_experts_are_chosen(isa: Isa) -> None:
    case = Mixture(4, 64, 32, 40, 3)
    case.router = pack(np.zeros((40, 64), np.float32), PackedShape(PackedFormat.F32, 40, 64))
    assert case.routes()[1][:, :3].all()
    assert sqnr_db(case.expected(), case.run(isa, range(4))) >= 30


@levels
@formats
def test_a_row_is_the_same_bits_in_any_batch_and_on_any_number_of_threads(
    isa: Isa, format: PackedFormat
) -> None:
    case = Mixture(23, 72, 40, 9, 3, format=format)
    together = case.run(isa, range(23))
    for threads in (1, 3, 5):
        assert (case.run(isa, range(23), threads=threads) == together).all()
    for rows in ([4], [22, 0], list(range(22, -1, -1)), list(range(3, 11))):
        assert (case.run(isa, rows) == together[rows]).all()


@levels
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_corrupt_row_spoils_itself_alone(isa: Isa, bad: float) -> None:
    case = Mixture(6, 64, 32, 5, 2)
    clean = case.run(isa, range(6))
    case.stream[2, 50] = bad
    spoiled = case.run(isa, range(6))
    assert np.isnan(spoiled[2]).all()
    rest = [0, 1, 3, 4, 5]
    assert (spoiled[rest] == clean[rest]).all()


@levels
def test_counters_name_the_experts_that_were_read(isa: Isa) -> None:
    case = Mixture(3, 64, 32, 12, 2)
    machine = case.machine(isa, 3)
    machine.floats("stream", 64)[:] = case.stream
    machine.run(plain_step(3))
    read = int(case.routes()[1].any(axis=0).sum())
    each = case.gate_ups[0].matrix.shape.nbytes + case.downs[0].matrix.shape.nbytes
    assert machine.counters["bytes"][1] == case.router.matrix.shape.nbytes + read * each
    assert machine.counters["multiply_adds"][1] == 3 * 12 * 64 + 3 * 2 * 3 * 32 * 64


@levels
def test_a_step_of_no_tokens_changes_nothing(isa: Isa) -> None:
    case = Mixture(3, 64, 32, 4, 2)
    machine = case.machine(isa, 3)
    machine.run(plain_step(0))
    assert (machine.arena == 0).all()
    assert machine.counters["bytes"][1] == 0


@levels
@pytest.mark.parametrize("rows", [1, 7, 64])
@pytest.mark.parametrize("format", [PackedFormat.INT4, PackedFormat.BF16], ids=lambda format: format.name)
def test_the_plan_knows_what_experts_need(isa: Isa, rows: int, format: PackedFormat) -> None:
    case = Mixture(1, 72, 40, 33, 3, format=format)
    machine = case.machine(isa, rows)
    needed = machine.library.tm_arena_bytes(ctypes.byref(machine.program))
    expected = experts_bytes(rows, 72, 33, 3, machine.row_bytes)
    assert needed == machine.shape.nbytes + expected
