"""Native attention against attention in float64, and against itself in other batches."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from support.native import LEVEL_NAMES, LEVELS, Machine, aligned, sqnr_db
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import KvFormat, OpKind, TmKvLayer, TmOp, TmRotary
from tokenmill.kernels.step import Step
from tokenmill.models.spec import LayerSpec, RopeSpec
from tokenmill.planner.arena import attention_bytes
from tokenmill.planner.kv_cache import KvFormatName, kv_head_bytes

MAX_POSITION = 1024


@dataclass(frozen=True)
class Case:
    """A layer's shape; `rotated` components of each head turn."""

    heads: int
    kv_heads: int
    dim: int
    rotated: int
    window: int = 0
    normed: bool = False
    block_size: int = 16


SHAPES = [
    Case(9, 3, 64, 64),
    Case(4, 4, 16, 16, block_size=32),
    Case(6, 2, 80, 40, window=70),
    Case(5, 1, 96, 96, normed=True),
    Case(8, 2, 128, 128, window=300, normed=True, block_size=128),
    Case(3, 1, 24, 24),
]


class Layer:
    """One attention with a cache of its own, and everything it points to."""

    def __init__(
        self,
        case: Case,
        isa: Isa,
        form: KvFormat,
        *,
        rows: int = 600,
        threads: int = 2,
        garbage: bool = False,
    ) -> None:
        self.case = case
        rng = np.random.default_rng(7)
        half = case.rotated // 2
        angles = rng.uniform(-3, 3, (MAX_POSITION, half)).astype(np.float32)
        self.cos, self.sin = np.cos(angles), np.sin(angles)
        self.query_norm = rng.uniform(0.5, 1.5, case.dim).astype(np.float32)
        self.key_norm = rng.uniform(0.5, 1.5, case.dim).astype(np.float32)
        name: KvFormatName = "int8" if form is KvFormat.INT8 else "bfloat16"
        head = kv_head_bytes(name, case.dim, case.block_size)
        self.blocks = 2048 // case.block_size
        self.cache = aligned(self.blocks * case.kv_heads * head)
        if garbage:
            self.cache[:] = 0xFF  # NaN as scales and as bfloat16
        layer = TmKvLayer(self.cache.ctypes.data, case.kv_heads * head, head)
        op = TmOp(
            kind=OpKind.ATTENTION,
            weight=self.query_norm.ctypes.data if case.normed else None,
            branch=self.key_norm.ctypes.data if case.normed else None,
            eps=1e-6,
            scale=case.dim**-0.5,
            heads=case.heads,
            kv_heads=case.kv_heads,
            head_dim=case.dim,
            window=case.window,
        )
        self.width = (case.heads + 2 * case.kv_heads) * case.dim
        self.machine = Machine(
            isa,
            [op],
            rows=rows,
            hidden=32,
            wide=self.width,
            deep=case.heads * case.dim,
            threads=threads,
            block_size=case.block_size,
            kv_format=form,
            layers=[layer],
            rotary=[TmRotary(self.cos.ctypes.data, self.sin.ctypes.data, half)],
        )

    def run(self, parts: list[tuple[np.ndarray, int, np.ndarray]]) -> np.ndarray:
        """Rows [tokens, width], tokens before them and blocks, of each sequence; gives [tokens, heads * dim]."""
        size = self.case.block_size
        counts = [len(rows) for rows, _, _ in parts]
        total = sum(counts)
        tables = np.zeros((len(parts), max(len(blocks) for _, _, blocks in parts)), dtype=np.int64)
        positions = np.concatenate([before + np.arange(len(rows)) for rows, before, _ in parts]).astype(
            np.int64
        )
        slots = np.concatenate(
            [
                blocks[(b + np.arange(len(r))) // size] * size + (b + np.arange(len(r))) % size
                for r, b, blocks in parts
            ]
        )
        for place, (_, _, blocks) in enumerate(parts):
            tables[place, : len(blocks)] = blocks
        step = Step(
            np.zeros(total, dtype=np.int64),
            positions,
            slots.astype(np.int64),
            np.concatenate(([0], np.cumsum(counts))).astype(np.int64),
            np.array([before + len(rows) for rows, before, _ in parts], dtype=np.int64),
            tables,
            np.empty(0, dtype=np.int64),
        )
        self.machine.floats("wide", self.width)[:total] = np.concatenate([rows for rows, _, _ in parts])
        self.machine.run(step)
        # What is quantized next, before it is: attention leaves it where the queries were.
        return self.machine.floats("wide", self.width)[:total, : self.case.heads * self.case.dim].copy()

    def expected(self, rows: np.ndarray) -> np.ndarray:
        """Of a whole sequence, in float64."""
        case, tokens = self.case, len(rows)
        parts = rows.astype(np.float64).reshape(tokens, -1, case.dim)
        q, k = parts[:, : case.heads], parts[:, case.heads : case.heads + case.kv_heads]
        v = parts[:, case.heads + case.kv_heads :]
        if case.normed:
            q, k = _rms(q) * self.query_norm, _rms(k) * self.key_norm
        q, k = self._rotated(q), self._rotated(k)
        distance = np.arange(tokens)[:, None] - np.arange(tokens)
        visible = (distance >= 0) & (distance < (case.window or tokens))
        out = np.empty((tokens, case.heads, case.dim))
        for head in range(case.heads):
            at = head // (case.heads // case.kv_heads)
            scores = np.where(visible, q[:, head] @ k[:, at].T * case.dim**-0.5, -np.inf)
            weights = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = weights / weights.sum(axis=1, keepdims=True) @ v[:, at]
        return out.reshape(tokens, -1)

    def _rotated(self, x: np.ndarray) -> np.ndarray:
        half = self.cos.shape[1]
        cos, sin = self.cos[: len(x), None], self.sin[: len(x), None]
        first, second = x[..., :half], x[..., half : 2 * half]
        turned = (first * cos - second * sin, second * cos + first * sin, x[..., 2 * half :])
        return np.concatenate(turned, axis=-1)


def _rms(x: np.ndarray) -> np.ndarray:
    return np.asarray(x / np.sqrt(np.square(x).mean(axis=-1, keepdims=True) + 1e-6))


def sequence(layer: Layer, tokens: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal((tokens, layer.width)).astype(np.float32)


def blocks_of(layer: Layer, tokens: int, first: int = 0) -> np.ndarray:
    """Blocks of a sequence, not in order."""
    count = -(-tokens // layer.case.block_size)
    return np.arange(first, first + count, dtype=np.int64)[::-1].copy()


@pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("tokens", [1, 31, 290])
def test_a_prompt_is_attended_as_in_float(isa: Isa, form: KvFormat, case: Case, tokens: int) -> None:
    layer = Layer(case, isa, form, garbage=True)
    rows = sequence(layer, tokens, 1)
    found = layer.run([(rows, 0, blocks_of(layer, tokens))])
    assert sqnr_db(layer.expected(rows), found) >= 30


@pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
@pytest.mark.parametrize("case", [SHAPES[0], SHAPES[2]], ids=str)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_a_rows_bits_do_not_depend_on_how_it_was_computed(
    isa: Isa, form: KvFormat, case: Case, threads: int
) -> None:
    whole = Layer(case, isa, form)
    tokens = 530  # three spans
    rows, other = sequence(whole, tokens, 2), sequence(whole, 40, 3)
    expected = whole.run([(rows, 0, blocks_of(whole, tokens))])
    alone = whole.run([(other, 0, blocks_of(whole, 40))])

    layer = Layer(case, isa, form, threads=threads, garbage=True)
    mine = blocks_of(layer, tokens, first=5)
    theirs = blocks_of(layer, 40)
    found = []
    for start, end in ((0, 7), (7, 300), (300, 301), (301, 528)):
        found.append(layer.run([(rows[start:end], start, mine)]))
    both = layer.run([(other, 0, theirs), (rows[528:529], 528, mine)])
    found += [both[40:], layer.run([(rows[529:530], 529, mine)])]
    assert np.array_equal(np.concatenate(found), expected)
    assert np.array_equal(both[:40], alone)


@pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
def test_many_sequences_decode_together_as_each_alone(isa: Isa, form: KvFormat) -> None:
    layer = Layer(SHAPES[0], isa, form)
    lengths = [1, 16, 17, 255, 256, 257]
    rows = [sequence(layer, length + 1, seed) for seed, length in enumerate(lengths)]
    tables, first = [], 0
    for length in lengths:
        tables.append(blocks_of(layer, length + 1, first))
        first += len(tables[-1])
    for prompt, table in zip(rows, tables, strict=True):
        layer.run([(prompt[:-1], 0, table)])
    last = [(prompt[-1:], len(prompt) - 1, table) for prompt, table in zip(rows, tables, strict=True)]
    together = layer.run(last)
    assert np.array_equal(together, np.concatenate([layer.run([part]) for part in last]))
    for prompt, row in zip(rows, together, strict=True):
        assert sqnr_db(layer.expected(prompt)[-1], row) >= 30


@pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_prompts_and_decodes_share_a_step(isa: Isa, form: KvFormat, threads: int) -> None:
    layer = Layer(SHAPES[4], isa, form, threads=threads, garbage=True)
    before, now = [700, 0, 299, 128, 5], [1, 150, 1, 60, 2]
    rows = [sequence(layer, old + new, seed) for seed, (old, new) in enumerate(zip(before, now, strict=True))]
    tables, first = [], 0
    for part in rows:
        tables.append(blocks_of(layer, len(part), first))
        first += len(tables[-1])
    for old, part, table in zip(before, rows, tables, strict=True):
        for start in range(0, old, 600):
            layer.run([(part[start : min(old, start + 600)], start, table)])
    last = [(part[old:], old, table) for old, part, table in zip(before, rows, tables, strict=True)]
    together = np.split(layer.run(last), np.cumsum(now)[:-1])
    for old, part, found, again in zip(before, rows, together, last, strict=True):
        assert sqnr_db(layer.expected(part)[old:], found) >= 30
        assert np.array_equal(found, layer.run([again]))


@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
def test_a_few_tokens_far_from_a_long_context_s_beginning(form: KvFormat) -> None:
    layer = Layer(SHAPES[0], LEVELS[0], form, threads=3)
    rows, table = sequence(layer, 1000, 8), blocks_of(layer, 1000)
    for start in (0, 500):
        layer.run([(rows[start : start + 500], start, table)])
    found = [layer.run([(rows[start:], start, table)])[-1] for start in (999, 998, 990, 400)]
    assert sqnr_db(layer.expected(rows)[-1], found[0]) >= 30
    assert all(np.array_equal(found[0], row) for row in found[1:])


@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
def test_a_window_looks_past_blocks_that_others_own_now(form: KvFormat) -> None:
    layer = Layer(SHAPES[2], LEVELS[0], form)  # 70 tokens
    rows, table = sequence(layer, 300, 9), blocks_of(layer, 300)
    layer.run([(rows[:299], 0, table)])
    expected = layer.run([(rows[299:], 299, table)])
    block = layer.cache.reshape(layer.blocks, -1)
    block[table[: (299 - 70) // 16]] = 0xFF
    assert np.array_equal(layer.run([(rows[299:], 299, table)]), expected)


@pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
@pytest.mark.parametrize("where", ["query", "key", "value"])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_none_is_passed_on_to_those_who_see_it(
    isa: Isa, form: KvFormat, where: str, number: float
) -> None:
    layer = Layer(SHAPES[1], isa, form)
    rows = sequence(layer, 20, 4)
    clean = layer.run([(rows, 0, blocks_of(layer, 20))])
    heads = layer.case.heads * layer.case.dim
    rows[4, {"query": 0, "key": heads, "value": 2 * heads}[where] + 3] = number
    found = layer.run([(rows, 0, blocks_of(layer, 20))])
    first_head = found[:, : layer.case.dim]
    assert np.isnan(first_head[4:5] if where == "query" else first_head[4:]).all()
    spared = [*range(4), *range(5, 20)] if where == "query" else list(range(4))
    assert np.array_equal(found[spared], clean[spared])


@pytest.mark.parametrize("isa", LEVELS, ids=LEVEL_NAMES)
def test_the_next_product_is_left_the_result_as_codes(isa: Isa) -> None:
    layer = Layer(SHAPES[2], isa, KvFormat.INT8)  # 480 columns in groups of 32 that span heads
    found = layer.run([(sequence(layer, 9, 5), 0, blocks_of(layer, 9))])
    assert sqnr_db(found, layer.machine.numbers(1, found.shape[1])[:9]) >= 35


@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
def test_a_step_of_no_tokens_writes_nothing(form: KvFormat) -> None:
    layer = Layer(SHAPES[0], LEVELS[0], form)
    none = np.empty(0, dtype=np.int64)
    tables = np.zeros((0, 1), dtype=np.int64)
    layer.machine.run(Step(none, none, none, np.zeros(1, dtype=np.int64), none, tables, none))
    assert not layer.cache.any()


def test_costs_are_keys_and_values_once_and_two_products() -> None:
    layer = Layer(SHAPES[2], LEVELS[0], KvFormat.INT8)  # 6 heads of 2 KV heads, 80 numbers, 70 tokens seen
    layer.run([(sequence(layer, 100, 6), 0, blocks_of(layer, 100))])
    seen = sum(range(1, 71)) + 30 * 70
    assert layer.machine.counters["multiply_adds"][0] == 2 * seen * 6 * 80
    token = 2 * (2 * 80 + 8)
    assert layer.machine.counters["bytes"][0] == (100 + 100) * token


@pytest.mark.parametrize("case", SHAPES, ids=str)
@pytest.mark.parametrize("form", list(KvFormat), ids=lambda form: form.name)
def test_the_planner_knows_what_attention_needs(case: Case, form: KvFormat) -> None:
    layer = Layer(case, LEVELS[0], form, rows=77, threads=3)
    rope = RopeSpec(1e4, case.rotated)
    spec = LayerSpec(case.heads, case.kv_heads, case.dim, 32, scale=1.0, rope=rope)
    planned = attention_bytes([spec], 77, 1 if form is KvFormat.INT8 else 2, 3)
    assert layer.machine.shape.nbytes + -(-planned // 64) * 64 == layer.machine.arena.nbytes
