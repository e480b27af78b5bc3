"""The native output head: logits of the rows that want them, their best tokens, and hidden states."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from support.native import LEVEL_NAMES, LEVELS, Machine, matrix_of, plain_step, sqnr_db
from support.packing import PRODUCT_FORMATS, Packed, pack, random_packed
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import OpKind, RowsAs, TmOp
from tokenmill.planner.packed import PackedFormat, PackedShape

levels = pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
formats = pytest.mark.parametrize("format", PRODUCT_FORMATS, ids=lambda format: format.name)


class Head:
    """A norm and an output head over given rows of the stream."""

    def __init__(self, packed: Packed, stream: np.ndarray) -> None:
        self.packed = packed
        self.stream = stream.astype(np.float32)
        self.weight = np.ones(stream.shape[1], dtype=np.float32)

    def normed(self) -> np.ndarray:
        x = self.stream.astype(np.float64)
        normed: np.ndarray = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + 1e-6)
        return normed

    def run(
        self, isa: Isa, logit_rows: Sequence[int], hidden_rows: Sequence[int] = (), *, threads: int = 2
    ) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        rows, hidden = self.stream.shape
        shape = self.packed.matrix.shape
        halves = shape.format is PackedFormat.BF16
        rows_as = RowsAs.BF16 if halves else RowsAs.INT8
        ops = [
            TmOp(kind=OpKind.NORM, rows_as=rows_as, weight=self.weight.ctypes.data, eps=1e-6, keep=1),
            TmOp(kind=OpKind.LOGITS, matrix=matrix_of(self.packed.matrix)),
        ]
        machine = Machine(
            isa,
            ops,
            max(rows, len(logit_rows)),
            hidden,
            hidden + 5,
            hidden,
            vocabulary=shape.rows,
            threads=threads,
            row_bytes=2 if halves else 1,
        )
        machine.floats("stream", hidden)[:rows] = self.stream
        return machine.run(plain_step(rows, logit_rows=logit_rows, hidden_rows=hidden_rows))


def head(format: PackedFormat, vocabulary: int, hidden: int, rows: int = 9) -> Head:
    stream = np.random.default_rng(1).standard_normal((rows, hidden))
    return Head(random_packed(format, vocabulary, hidden), stream)


@levels
@formats
@pytest.mark.parametrize("shape", [(70, 40), (33, 200), (1, 32), (32, 31), (200, 64)])
@pytest.mark.parametrize("wanted", [[8, 0, 3], [5], list(range(9))], ids=len)
def test_logits_of_wanted_rows(
    isa: Isa, format: PackedFormat, shape: tuple[int, int], wanted: list[int]
) -> None:
    case = head(format, *shape)
    logits, _, best = case.run(isa, wanted)
    expected = case.normed()[wanted] @ case.packed.numbers.T.astype(np.float64)
    assert sqnr_db(expected, logits) >= 30
    assert best.tolist() == logits.argmax(-1).tolist()


@levels
def test_hidden_states_are_what_the_norm_kept(isa: Isa) -> None:
    case = head(PackedFormat.INT8, 40, 100)
    logits, hidden, best = case.run(isa, [], [7, 2, 2])
    np.testing.assert_allclose(hidden, case.normed()[[7, 2, 2]], rtol=2e-6, atol=1e-6)
    assert logits.shape == (0, 40)
    assert best.shape == (0,)


@levels
def test_a_row_may_be_wanted_more_often_than_there_are_tokens(isa: Isa) -> None:
    case = head(PackedFormat.INT8, 40, 64, rows=2)
    logits, _, _ = case.run(isa, [1, 0, 1, 1, 0, 1, 1, 1])
    assert (logits[0] == logits[7]).all()
    assert (logits[1] == logits[4]).all()


@levels
@pytest.mark.parametrize("threads", [1, 2, 5])
def test_best_is_the_first_of_equal_logits(isa: Isa, threads: int) -> None:
    weight = np.zeros((300, 32), dtype=np.float32)
    weight[[60, 130, 131, 290]] = 1
    packed = pack(weight, PackedShape(PackedFormat.INT8, 300, 32))
    ones, minus, none = np.ones(32), -np.ones(32), np.zeros(32)
    _, _, best = Head(packed, np.stack([ones, minus, none])).run(isa, [0, 1, 2], threads=threads)
    assert best.tolist() == [60, 0, 0]


@levels
@pytest.mark.parametrize("vocabulary", [5, 40])
def test_best_among_negative_logits(isa: Isa, vocabulary: int) -> None:
    weight = -np.tile(np.arange(1, vocabulary + 1, dtype=np.float32)[::-1, None], (1, 32))
    packed = pack(weight, PackedShape(PackedFormat.INT8, vocabulary, 32))
    logits, _, best = Head(packed, np.ones((1, 32))).run(isa, [0])
    assert (logits < 0).all()
    assert best.tolist() == [vocabulary - 1]


@levels
@formats
@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
def test_a_corrupt_row_has_no_best_token(isa: Isa, format: PackedFormat, bad: float) -> None:
    case = head(format, 70, 40, rows=3)
    case.stream[1, 33] = bad
    _, _, best = case.run(isa, [0, 1, 2])
    assert best[1] == -1
    assert (best[[0, 2]] >= 0).all()


@levels
@pytest.mark.parametrize("token", [0, 31, 32, 69])
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_one_corrupt_logit_is_enough(isa: Isa, token: int, bad: float) -> None:
    case = head(PackedFormat.BF16, 70, 64, rows=2)
    panel, lane = divmod(token, 32)
    halves = case.packed.matrix.data.numpy().view(np.uint16)[panel].reshape(-1, 32, 2)
    halves[3, lane, 1] = np.array([bad], np.float32).view(np.uint32)[0] >> 16
    _, _, best = case.run(isa, [0, 1])
    assert best.tolist() == [-1, -1]


@levels
@formats
def test_a_row_has_the_same_logits_in_any_batch_and_on_any_number_of_threads(
    isa: Isa, format: PackedFormat
) -> None:
    case = head(format, 170, 100)
    together, _, best = case.run(isa, list(range(9)))
    for threads in (1, 3, 8):
        again, _, again_best = case.run(isa, list(range(9)), threads=threads)
        assert (again == together).all()
        assert (again_best == best).all()
    for row in range(9):
        alone, _, alone_best = case.run(isa, [row])
        assert (alone[0] == together[row]).all()
        assert alone_best[0] == best[row]
