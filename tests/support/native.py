"""Runs single operators of the native library on numpy arrays."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch

from tokenmill.hardware.cpu import cpu_flags
from tokenmill.hardware.isa import ISAS, Isa
from tokenmill.kernels.cpu.abi import (
    KvFormat,
    TmCounters,
    TmKvLayer,
    TmMatrix,
    TmOp,
    TmProgram,
    TmRotary,
    TmStep,
)
from tokenmill.kernels.cpu.library import step_library
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.step import Step
from tokenmill.planner.arena import ArenaShape

# Every level this machine can run.
LEVELS: tuple[Isa, ...] = tuple(isa for isa in ISAS if isa.needs.issubset(cpu_flags()))
LEVEL_NAMES = [isa.name for isa in LEVELS]


def aligned(size: int) -> np.ndarray:
    """Zeroed bytes whose address is a multiple of 64."""
    whole = np.zeros(size + 64, dtype=np.uint8)
    start = -whole.ctypes.data % 64
    return whole[start : start + size]


def matrix_of(packed: PackedMatrix, bias: torch.Tensor | None = None) -> TmMatrix:
    """As the library takes it; `packed` and `bias` must outlive it."""
    shape = packed.shape
    return TmMatrix(
        data=packed.data.data_ptr(),
        bias=None if bias is None else bias.data_ptr(),
        panel_bytes=shape.panel_bytes,
        scales_at=shape.code_bytes,
        offsets_at=shape.code_bytes + shape.scales_bytes,
        format=shape.format,
        n=shape.rows,
        k=shape.columns,
        scale_every=shape.scale_every,
        scale_bytes=shape.scale_bytes,
    )


def plain_step(tokens: int, *, logit_rows: Sequence[int] = (), hidden_rows: Sequence[int] = ()) -> Step:
    """One sequence of `tokens` tokens from position 0, in blocks of 16."""
    rank = np.arange(tokens, dtype=np.int64)
    blocks = np.arange(max(1, -(-tokens // 16)), dtype=np.int64)[None]
    ends = np.array([0, tokens], dtype=np.int64)
    rows = np.array(logit_rows, dtype=np.int64)
    hidden = np.array(hidden_rows, dtype=np.int64)
    return Step(rank % 7, rank, rank, ends, ends[1:], blocks, rows, hidden)


@dataclass
class Machine:
    """A program of given operators with an arena of its own; buffers are numpy views of it.

    `layers` and `rotary` are kept alive here; everything operators point to must outlive the machine.
    """

    isa: Isa
    ops: Sequence[TmOp]
    rows: int
    hidden: int
    wide: int
    deep: int
    vocabulary: int = 1
    threads: int = 2
    row_bytes: int = 1
    block_size: int = 16
    max_context: int = 4096
    kv_format: KvFormat = KvFormat.INT8
    layers: Sequence[TmKvLayer] = ()
    rotary: Sequence[TmRotary] = ()
    counters: dict[str, np.ndarray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.library = step_library(self.isa)
        self._ops = (TmOp * max(1, len(self.ops)))(*self.ops)
        self._layers = (TmKvLayer * max(1, len(self.layers)))(*self.layers)
        self._rotary = (TmRotary * max(1, len(self.rotary)))(*self.rotary)
        self.program = TmProgram(
            ops=self._ops,
            rotary=self._rotary,
            layers=self._layers,
            n_ops=len(self.ops),
            hidden=self.hidden,
            vocabulary=self.vocabulary,
            wide=self.wide,
            deep=self.deep,
            max_rows=self.rows,
            max_logit_rows=self.rows,
            max_context=self.max_context,
            block_size=self.block_size,
            kv_format=self.kv_format,
            threads=self.threads,
            row_bytes=self.row_bytes,
        )
        self.shape = ArenaShape(self.rows, self.hidden, self.wide, self.deep, self.row_bytes)
        self.arena = aligned(self.library.tm_arena_bytes(ctypes.byref(self.program)))
        self.program.arena = self.arena.ctypes.data
        names = ("nanoseconds", "bytes", "multiply_adds")
        self.counters = {name: np.zeros(max(1, len(self.ops)), dtype=np.int64) for name in names}

    def floats(self, name: str, width: int) -> np.ndarray:
        """A buffer of the arena, [rows, width]: stream, branch (width hidden) or wide."""
        start = self.shape.offsets()[name]
        return self.arena[start : start + self.rows * width * 4].view(np.float32).reshape(self.rows, width)

    def codes(self, place: int, columns: int) -> np.ndarray:
        """The int8 codes of rows 0 or 1, [rows, columns rounded up to 32]."""
        start, width = self.shape.offsets()[f"rows{place}.codes"], -(-columns // 32) * 32
        return self.arena[start : start + self.rows * width].view(np.int8).reshape(self.rows, width)

    def numbers(self, place: int, columns: int) -> np.ndarray:
        """What int8 rows 0 or 1 stand for, [rows, columns] float32."""
        groups = -(-columns // 32)
        start = self.shape.offsets()[f"rows{place}.scales"]
        scales = (
            self.arena[start : start + self.rows * groups * 4].view(np.float32).reshape(self.rows, groups)
        )
        return (self.codes(place, columns) * scales.repeat(32, axis=1))[:, :columns]

    def run(self, step: Step) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Runs the operators; gives logits, hidden states and best tokens."""
        logits = np.zeros((len(step.logit_rows), self.vocabulary), dtype=np.float32)
        hidden = np.zeros((len(step.hidden_rows), self.hidden), dtype=np.float32)
        best = np.zeros(len(step.logit_rows), dtype=np.int64)
        native = TmStep(
            token_ids=step.token_ids.ctypes.data,
            positions=step.positions.ctypes.data,
            slots=step.slots.ctypes.data,
            query_starts=step.query_starts.ctypes.data,
            context_lens=step.context_lens.ctypes.data,
            block_tables=step.block_tables.ctypes.data,
            logit_rows=step.logit_rows.ctypes.data,
            hidden_rows=step.hidden_rows.ctypes.data,
            table_width=step.block_tables.shape[1],
            tokens=len(step.token_ids),
            sequences=len(step.context_lens),
            n_logit_rows=len(step.logit_rows),
            n_hidden_rows=len(step.hidden_rows),
            logits=logits.ctypes.data,
            hidden=hidden.ctypes.data,
            best=best.ctypes.data,
        )
        counters = TmCounters(**{name: values.ctypes.data for name, values in self.counters.items()})
        self.library.tm_run(ctypes.byref(self.program), ctypes.byref(native), ctypes.byref(counters))
        return logits, hidden, best


def sqnr_db(reference: np.ndarray, found: np.ndarray) -> float:
    """Signal to noise in decibels; infinite where they are equal."""
    noise = float(np.square(reference.astype(np.float64) - found).sum())
    signal = float(np.square(reference.astype(np.float64)).sum())
    return float("inf") if noise == 0 else 10 * float(np.log10(signal / noise))
