"""Native products of rows with packed matrices, against float64 over the very numbers that are multiplied."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from support.native import LEVEL_NAMES, LEVELS, Machine, aligned, matrix_of, plain_step, sqnr_db
from support.packing import PRODUCT_FORMATS, Packed, gated, pack, random_packed, ungated
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import Activation, Epilogue, OpKind, RowsAs, TmOp
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.planner.packed import GROUP, PANEL, PackedFormat, PackedShape

# What float32 sums of a few dozen terms lose, of the sum of the terms' magnitudes.
LOSS = 1e-6

CODE_FORMATS = [each for each in PRODUCT_FORMATS if each.scaled]
SHAPES = [(1, 1), (33, 32), (31, 65), (64, 96), (100, 40), (70, 290)]

levels = pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
formats = pytest.mark.parametrize("format", PRODUCT_FORMATS, ids=lambda format: format.name)
code_formats = pytest.mark.parametrize("format", CODE_FORMATS, ids=lambda format: format.name)
activations = pytest.mark.parametrize("activation", list(Activation), ids=lambda activation: activation.name)


@dataclass
class Left:
    """Rows as a product reads them; `numbers` [rows, columns] float32 is what they stand for.

    `scales` and `totals`, sums of the codes, are [rows, groups], for int8 rows.
    """

    numbers: np.ndarray
    codes: np.ndarray
    scales: np.ndarray
    totals: np.ndarray

    def put(self, machine: Machine, place: int, chosen: Sequence[int]) -> None:
        offsets, index = machine.shape.offsets(), list(chosen)
        parts = {"codes": self.codes[index]}
        if self.codes.dtype == np.int8:
            scales, totals = self.scales[index], self.totals[index]
            parts |= {"scales": scales, "less": -totals, "sums": scales * totals.astype(np.float32)}
        for name, part in parts.items():
            flat = np.ascontiguousarray(part).view(np.uint8).ravel()
            start = offsets[f"rows{place}.{name}"]
            machine.arena[start : start + flat.size] = flat


def quantized(x: np.ndarray) -> Left:
    """Rows [rows, columns] as int8 with a scale for each group of 32, as native/rows.h rounds them."""
    groups = _padded(x.astype(np.float32)).reshape(len(x), -1, GROUP)
    top = np.abs(groups).max(-1)
    inverse = np.divide(np.float32(127), top, out=np.zeros_like(top), where=top > 0)
    codes = np.rint(groups * inverse[..., None]).astype(np.int8)
    scales = (top / np.float32(127)).astype(np.float32)
    numbers = (codes * scales[..., None]).reshape(len(x), -1)[:, : x.shape[1]]
    return Left(numbers, codes.reshape(len(x), -1), scales, codes.sum(-1, dtype=np.int32))


def halved(x: np.ndarray) -> Left:
    """Rows as bfloat16."""
    halves = torch.from_numpy(_padded(x.astype(np.float32))).bfloat16()
    none = np.zeros((len(x), 0), np.float32)
    return Left(halves.float().numpy()[:, : x.shape[1]], halves.view(torch.int16).numpy(), none, none)


def _padded(x: np.ndarray) -> np.ndarray:
    return np.pad(x, ((0, 0), (0, -x.shape[1] % GROUP)))


def left_for(format: PackedFormat, x: np.ndarray) -> Left:
    return halved(x) if format is PackedFormat.BF16 else quantized(x)


def random_rows(rows: int, columns: int, seed: int = 5) -> np.ndarray:
    """Of very different sizes."""
    random = np.random.default_rng(seed)
    return (random.standard_normal((rows, columns)) * 10 ** random.uniform(-2, 2, (rows, 1))).astype(
        np.float32
    )


def run(
    isa: Isa,
    matrix: PackedMatrix,
    left: Left,
    epilogue: Epilogue,
    chosen: Sequence[int] | None = None,
    *,
    bias: np.ndarray | None = None,
    threads: int = 2,
    first: int = 0,
    activation: Activation = Activation.SILU,
    rows_as: RowsAs = RowsAs.INT8,
    spare: int = 1,
) -> Machine:
    """The machine after one product of the chosen rows.

    Floats are 77 before it; `spare` rows follow those of the step, and 5 columns those of `wide`.
    """
    chosen = range(len(left.codes)) if chosen is None else chosen
    shape, two_bytes = matrix.shape, left.codes.dtype == np.int16
    width = shape.rows // 2 if epilogue is Epilogue.GATED else shape.rows
    kept = None if bias is None else torch.from_numpy(bias)
    op = TmOp(
        kind=OpKind.PRODUCT,
        epilogue=epilogue,
        matrix=matrix_of(matrix, kept),
        first=first,
        activation=activation,
        rows_as=rows_as,
    )
    machine = Machine(
        isa,
        [op],
        len(chosen) + spare,
        width,
        first + -(-width // GROUP) * GROUP + 5,
        max(shape.columns, width),
        threads=threads,
        row_bytes=2 if two_bytes or rows_as is RowsAs.BF16 else 1,
    )
    for name in ("stream", "branch"):
        machine.floats(name, machine.hidden)[:] = 77
    machine.floats("wide", machine.wide)[:] = 77
    left.put(machine, 0 if epilogue in (Epilogue.QKV, Epilogue.GATED) else 1, chosen)
    machine.run(plain_step(len(chosen)))
    return machine


def stored(
    isa: Isa, matrix: PackedMatrix, left: Left, chosen: Sequence[int] | None = None, *, threads: int = 2
) -> np.ndarray:
    """The product of the chosen rows, [rows, n]."""
    machine = run(isa, matrix, left, Epilogue.STORE, chosen, threads=threads)
    branch = machine.floats("branch", machine.hidden)
    assert (branch[-1] == 77).all()  # nothing past the rows of the step
    return branch[:-1].copy()


def close(packed: Packed, left: Left, found: np.ndarray, bias: np.ndarray | float = 0.0) -> None:
    """`found` is left.numbers @ packed.numbers^T + bias, up to what sums in float32 lose."""
    x, w = left.numbers.astype(np.float64), packed.numbers.astype(np.float64)
    allowed = LOSS * (np.abs(x) @ np.abs(w).T + np.abs(bias)) + 1e-12
    assert (np.abs(x @ w.T + bias - found) <= allowed).all()


@levels
@formats
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_product_of_any_shape(isa: Isa, format: PackedFormat, shape: tuple[int, int]) -> None:
    packed = random_packed(format, *shape)
    left = left_for(format, random_rows(9, shape[1]))
    close(packed, left, stored(isa, packed.matrix, left))


@levels
@code_formats
@pytest.mark.parametrize("scale_bytes", [2, 4])
@pytest.mark.parametrize("scale_every", [1, 2, 4])
def test_scales_of_any_kind(isa: Isa, format: PackedFormat, scale_every: int, scale_bytes: int) -> None:
    packed = random_packed(format, 45, 230, scale_every=scale_every, scale_bytes=scale_bytes)
    left = quantized(random_rows(7, 230))
    close(packed, left, stored(isa, packed.matrix, left))


@levels
@code_formats
def test_integers_are_exact_at_the_limits_of_codes(isa: Isa, format: PackedFormat) -> None:
    """Scales are 1, so that results are integers below 2^24, which floats hold exactly."""
    random, columns = np.random.default_rng(3), 256
    top, zero = {
        PackedFormat.INT8: (255, 128),
        PackedFormat.INT8_OFFSET: (255, 0),
        PackedFormat.INT4: (15, 8),
        PackedFormat.INT4_OFFSET: (15, 0),
    }[format]
    codes = random.integers(0, top + 1, (PANEL, columns))
    codes[:8] = top
    codes[8:16] = 0
    codes[16:24] = random.choice([0, top], (8, columns))
    shape = PackedShape(format, PANEL, columns)
    data = aligned(shape.panel_bytes)
    groups = codes.reshape(PANEL, -1, GROUP)
    if top == 15:
        groups = groups[..., :16] + groups[..., 16:] * 16
    fours = groups.reshape(PANEL, columns // GROUP, -1, 4).transpose(1, 2, 0, 3)
    data[: shape.code_bytes] = fours.ravel()
    parts = [np.ones(shape.scales * PANEL, np.float16)]
    if format.offset:
        parts.append(np.full(shape.scales * PANEL, 3, np.float16))
    data[shape.code_bytes :] = np.concatenate(parts).view(np.uint8)
    rows = random.integers(-127, 128, (7, columns)).astype(np.int8)
    rows[:4] = [[127], [-127], [0], [1]]
    rows[4] = random.choice([-127, 127], columns)
    totals = rows.reshape(7, -1, GROUP).sum(-1, dtype=np.int32)
    left = Left(rows.astype(np.float32), rows, np.ones(totals.shape, np.float32), totals)
    found = stored(isa, PackedMatrix(shape, torch.from_numpy(data.reshape(1, -1))), left)
    expected = rows.astype(np.int64) @ (codes - zero + (3 if format.offset else 0)).T
    assert np.abs(expected).max() < 1 << 24
    assert (found == expected).all()


@levels
@formats
def test_any_number_of_rows_on_any_number_of_threads_gives_a_row_the_same_bits(
    isa: Isa, format: PackedFormat
) -> None:
    packed = random_packed(format, 150, 130)
    left = left_for(format, random_rows(40, 130))
    alone = np.concatenate([stored(isa, packed.matrix, left, [row], threads=1) for row in range(40)])
    close(packed, left, alone)
    for count in range(1, 41):
        assert (stored(isa, packed.matrix, left, range(count), threads=1 + count % 3) == alone[:count]).all()
    backwards = list(range(39, -1, -1))
    assert (stored(isa, packed.matrix, left, backwards, threads=7) == alone[backwards]).all()


@levels
@formats
def test_more_rows_than_a_cache_holds(isa: Isa, format: PackedFormat) -> None:
    packed = random_packed(format, 64, 600)
    left = left_for(format, random_rows(1100, 600))
    together = stored(isa, packed.matrix, left)
    close(packed, left, together)
    for row in (0, 511, 512, 1099):
        assert (stored(isa, packed.matrix, left, [row]) == together[row]).all()


@levels
@formats
def test_close_to_the_product_of_what_was_rounded(isa: Isa, format: PackedFormat) -> None:
    random = np.random.default_rng(8)
    weight = random.standard_normal((96, 576)).astype(np.float32)
    x = random.standard_normal((5, 576)).astype(np.float32)
    packed = pack(weight, PackedShape(format, 96, 576))
    found = stored(isa, packed.matrix, left_for(format, x))
    assert sqnr_db(x.astype(np.float64) @ weight.T, found) >= (20 if format.name.startswith("INT4") else 38)


@levels
def test_bfloat16_products_are_those_of_torch(isa: Isa) -> None:
    packed = random_packed(PackedFormat.BF16, 80, 200)
    left = halved(random_rows(6, 200))
    found = torch.from_numpy(stored(isa, packed.matrix, left))
    x, w = torch.from_numpy(left.numbers).bfloat16(), torch.from_numpy(packed.numbers).bfloat16()
    expected = torch.nn.functional.linear(x, w).float()
    torch.testing.assert_close(
        found.bfloat16().float(), expected, rtol=2**-7, atol=float(expected.abs().max()) * 1e-6
    )


@levels
@formats
def test_bias_is_added(isa: Isa, format: PackedFormat) -> None:
    packed = random_packed(format, 75, 64)
    left = left_for(format, random_rows(8, 64))
    bias = np.random.default_rng(4).standard_normal(75).astype(np.float32)
    machine = run(isa, packed.matrix, left, Epilogue.STORE, bias=bias)
    plain = stored(isa, packed.matrix, left)
    assert (machine.floats("branch", 75)[:-1] == plain + bias).all()


@levels
@formats
@pytest.mark.parametrize("n", [31, 64, 75])
def test_product_is_added_to_the_stream(isa: Isa, format: PackedFormat, n: int) -> None:
    packed = random_packed(format, n, 64)
    left = left_for(format, random_rows(8, 64))
    machine = run(isa, packed.matrix, left, Epilogue.ADD)
    stream, branch = machine.floats("stream", n), machine.floats("branch", n)
    assert (stream[:-1] == 77 + stored(isa, packed.matrix, left)).all()
    assert (stream[-1] == 77).all()
    assert (branch == 77).all()


@levels
@formats
@pytest.mark.parametrize(("n", "first"), [(64, 0), (75, 32), (31, 7)])
def test_queries_keys_and_values_go_to_their_columns(
    isa: Isa, format: PackedFormat, n: int, first: int
) -> None:
    packed = random_packed(format, n, 64)
    left = left_for(format, random_rows(8, 64))
    machine = run(isa, packed.matrix, left, Epilogue.QKV, first=first)
    wide = machine.floats("wide", machine.wide).copy()
    assert (wide[:-1, first : first + n] == stored(isa, packed.matrix, left)).all()
    wide[:-1, first : first + n] = 77
    assert (wide == 77).all()


def activate(activation: Activation, x: np.ndarray) -> np.ndarray:
    inner = x if activation is Activation.SILU else 2 * np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)
    with np.errstate(over="ignore"):
        out: np.ndarray = x / (1 + np.exp(-inner))
    return out


@levels
@formats
@activations
@pytest.mark.parametrize("inner", [5, 16, 32, 48, 72])
@pytest.mark.parametrize("biased", [False, True], ids=["plain", "bias"])
def test_gated_product_becomes_rows_of_the_next(
    isa: Isa, format: PackedFormat, activation: Activation, inner: int, biased: bool
) -> None:
    random = np.random.default_rng(inner)
    gate, up = random.standard_normal((2, inner, 100)).astype(np.float32) * np.float32(0.2)
    weight = gated(gate, up)
    packed = pack(weight, PackedShape(format, *weight.shape))
    left = left_for(format, random.standard_normal((9, 100)).astype(np.float32))
    bias = random.standard_normal((2, inner, 1)).astype(np.float32) * np.float32(biased)
    together = gated(bias[0], bias[1]).ravel()
    machine = run(
        isa, packed.matrix, left, Epilogue.GATED, activation=activation, bias=together if biased else None
    )
    x = left.numbers.astype(np.float64)
    parts = [x @ part.T.astype(np.float64) for part in ungated(packed.numbers)]
    sizes = [np.abs(x) @ np.abs(part).T + 1 for part in ungated(packed.numbers)]
    biases = ungated(together[:, None])
    left_part, right_part = parts[0] + biases[0].T, parts[1] + biases[1].T
    # Neither activation is steeper than 1.2.
    allowed = 2 * LOSS * (1.2 * sizes[0] * np.abs(right_part) + np.abs(left_part) * sizes[1] + 1)
    padded = weight.shape[0] // 2
    wide = machine.floats("wide", machine.wide)[:-1, :padded]
    assert (np.abs(wide - activate(activation, left_part) * right_part) <= allowed).all()
    assert (wide[:, inner:] == 0).all()
    expected = quantized(wide)
    assert (machine.codes(1, padded)[:-1] == expected.codes).all()
    assert (machine.numbers(1, padded)[:-1] == expected.numbers).all()
    groups = machine.shape.offsets()
    for name, kind, values in (
        ("less", np.int32, -expected.totals),
        ("sums", np.float32, expected.scales * expected.totals.astype(np.float32)),
    ):
        start = groups[f"rows1.{name}"]
        assert (
            machine.arena[start : start + values.size * 4].view(kind).reshape(values.shape) == values
        ).all()


@levels
@formats
@pytest.mark.parametrize("inner", [16, 72])
def test_gated_product_becomes_bfloat16_rows(isa: Isa, format: PackedFormat, inner: int) -> None:
    weight = gated(*np.random.default_rng(2).standard_normal((2, inner, 64)).astype(np.float32))
    packed = pack(weight, PackedShape(format, *weight.shape))
    machine = run(
        isa, packed.matrix, left_for(format, random_rows(9, 64)), Epilogue.GATED, rows_as=RowsAs.BF16
    )
    padded, columns = weight.shape[0] // 2, -(-weight.shape[0] // 2 // GROUP) * GROUP
    expected = halved(machine.floats("wide", machine.wide)[:-1, :padded]).codes
    start = machine.shape.offsets()["rows1.codes"]
    found = machine.arena[start : start + 9 * columns * 2].view(np.int16).reshape(9, columns)
    assert (found == expected).all()


@levels
@formats
def test_a_gated_row_is_the_same_bits_in_any_batch_and_on_any_number_of_threads(
    isa: Isa, format: PackedFormat
) -> None:
    weight = gated(*np.random.default_rng(2).standard_normal((2, 120, 64)).astype(np.float32))
    packed = pack(weight, PackedShape(format, *weight.shape))
    left = left_for(format, random_rows(21, 64))
    alone = [run(isa, packed.matrix, left, Epilogue.GATED, [row], threads=1) for row in range(21)]
    for threads in (1, 2, 3, 5):
        machine = run(isa, packed.matrix, left, Epilogue.GATED, threads=threads)
        for row, other in enumerate(alone):
            assert (machine.codes(1, 128)[row] == other.codes(1, 128)[0]).all()
            assert (machine.floats("wide", 133)[row] == other.floats("wide", 133)[0]).all()


@levels
@formats
def test_a_corrupt_row_spoils_itself_alone(isa: Isa, format: PackedFormat) -> None:
    packed = random_packed(format, 64, 64)
    left = left_for(format, random_rows(8, 64))
    clean = stored(isa, packed.matrix, left)
    if left.codes.dtype == np.int8:
        left.scales[3, 1] = np.nan
    else:
        left.codes[3, 40] = 0x7FC0
    spoiled = stored(isa, packed.matrix, left)
    assert np.isnan(spoiled[3]).all()
    assert (np.delete(spoiled, 3, axis=0) == np.delete(clean, 3, axis=0)).all()


@levels
@formats
@pytest.mark.parametrize("epilogue", list(Epilogue), ids=lambda epilogue: epilogue.name)
def test_a_step_of_no_tokens_changes_nothing(isa: Isa, format: PackedFormat, epilogue: Epilogue) -> None:
    packed = random_packed(format, 64, 64)
    machine = run(isa, packed.matrix, left_for(format, random_rows(1, 64)), epilogue, [])
    for name, width in (("stream", machine.hidden), ("branch", machine.hidden), ("wide", machine.wide)):
        assert (machine.floats(name, width) == 77).all()
    assert (machine.codes(1, machine.hidden) == 0).all()
    assert machine.counters["bytes"][0] == machine.counters["multiply_adds"][0] == 0


@levels
@formats
def test_counters_count_the_matrix_once(isa: Isa, format: PackedFormat) -> None:
    packed = random_packed(format, 75, 100)
    machine = run(isa, packed.matrix, left_for(format, random_rows(9, 100)), Epilogue.STORE)
    assert machine.counters["bytes"][0] == packed.matrix.shape.nbytes
    assert machine.counters["multiply_adds"][0] == 9 * 75 * 100
