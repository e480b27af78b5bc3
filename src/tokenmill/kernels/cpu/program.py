"""The step program on the native library: one call a step."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import (
    KvFormat,
    TmCounters,
    TmKvLayer,
    TmProgram,
    TmRotary,
    TmStep,
)
from tokenmill.kernels.cpu.library import step_library
from tokenmill.kernels.cpu.lower import Lowering
from tokenmill.kernels.memory import committed
from tokenmill.kernels.program import KvLayout, Program, StepOutput
from tokenmill.kernels.step import Ints, Step
from tokenmill.planner.kv_cache import kv_head_bytes

_COUNTERS = ("nanoseconds", "bytes", "multiply_adds")


@dataclass(frozen=True)
class StepLimits:
    """The largest step a program is made for.

    Attributes:
        rows: tokens.
        logit_rows: tokens whose logits are wanted.
        context: longest sequence, in tokens.
        threads: that run it.
    """

    rows: int
    logit_rows: int
    context: int
    threads: int


class NativeProgram:
    """Runs lowered operators.

    Args:
        program: for its rotary tables and sizes; its matrices are not looked at.
        lowering: its operators, packed.
    """

    def __init__(
        self,
        isa: Isa,
        program: Program,
        lowering: Lowering,
        layout: KvLayout,
        kv_format: KvFormat,
        limits: StepLimits,
    ) -> None:
        self._library = step_library(isa)
        self._limits = limits
        self._layout = layout
        self._lowering = lowering
        self._ops = lowering.array()
        self._vocabulary = program.vocab_size
        self._hidden = _hidden(lowering)
        self._positions = min((len(table.cos) for table in program.rotary), default=limits.context)
        self._tables = [(t.cos.float().contiguous(), t.sin.float().contiguous()) for t in program.rotary]
        rotary = (TmRotary * len(self._tables))(
            *(TmRotary(cos.data_ptr(), sin.data_ptr(), cos.shape[1]) for cos, sin in self._tables)
        )
        self._kv = [_allocate(layout, heads, dim, kv_format) for heads, dim in layout.shapes]
        layers = (TmKvLayer * len(self._kv))(
            *(TmKvLayer(cache.data_ptr(), cache[0].nbytes, cache[0, 0].nbytes) for cache in self._kv)
        )
        self._counts = {name: np.zeros(len(self._ops), dtype=np.int64) for name in _COUNTERS}
        self._counters = TmCounters(**{name: array.ctypes.data for name, array in self._counts.items()})
        self._native = TmProgram(
            ops=self._ops,
            rotary=rotary,
            layers=layers,
            n_ops=len(self._ops),
            hidden=self._hidden,
            vocabulary=self._vocabulary,
            wide=lowering.wide,
            deep=lowering.deep,
            max_rows=limits.rows,
            max_logit_rows=limits.logit_rows,
            max_context=limits.context,
            block_size=layout.block_size,
            kv_format=kv_format,
            threads=limits.threads,
            row_bytes=2 if lowering.rows_as else 1,
        )
        self._arena = committed((self._library.tm_arena_bytes(ctypes.byref(self._native)),), torch.uint8)
        self._native.arena = self._arena.data_ptr()
        self._arguments = (ctypes.byref(self._native), ctypes.byref(self._counters))

    @property
    def arena_bytes(self) -> int:
        return self._arena.nbytes

    def operator_counts(self) -> dict[str, Ints]:
        """Nanoseconds, bytes moved and multiply-adds since the start, each [operators]."""
        return {name: array.copy() for name, array in self._counts.items()}

    def clear(self, blocks: Sequence[int]) -> None:
        at = torch.tensor(blocks, dtype=torch.int64)
        for cache in self._kv:
            cache[at] = 0

    def run(self, step: Step) -> StepOutput:
        self._check(step)
        logits = torch.empty(len(step.logit_rows), self._vocabulary)
        hidden = torch.empty(len(step.hidden_rows), self._hidden)
        best = np.empty(len(step.logit_rows), dtype=np.int64)
        native = TmStep(
            *(
                array.ctypes.data
                for array in (
                    step.token_ids,
                    step.positions,
                    step.slots,
                    step.query_starts,
                    step.context_lens,
                    step.block_tables,
                    step.logit_rows,
                    step.hidden_rows,
                )
            ),
            step.block_tables.shape[1],
            len(step.token_ids),
            len(step.context_lens),
            len(step.logit_rows),
            len(step.hidden_rows),
            logits.data_ptr(),
            hidden.data_ptr(),
            best.ctypes.data,
        )
        before = int(self._counts["bytes"].sum()), int(self._counts["multiply_adds"].sum())
        program, counters = self._arguments
        self._library.tm_run(program, ctypes.byref(native), counters)
        after = int(self._counts["bytes"].sum()), int(self._counts["multiply_adds"].sum())
        return StepOutput(logits, hidden, best, after[0] - before[0], after[1] - before[1])

    def _check(self, step: Step) -> None:
        """The library reads and writes where a step says; it must say nothing outside.

        Raises:
            ValueError: it does.
        """
        limits, blocks = self._limits, self._layout.num_blocks
        rows = len(step.token_ids)
        if (
            rows > limits.rows
            or len(step.logit_rows) > limits.logit_rows
            or len(step.hidden_rows) > limits.rows
        ):
            raise ValueError(
                f"a step of {rows} tokens and {len(step.logit_rows)} rows of logits; "
                f"at most {limits.rows} and {limits.logit_rows} are allowed"
            )
        for name, array, bound in (
            ("token", step.token_ids, self._vocabulary),
            ("position", step.positions, self._positions),
            ("slot", step.slots, blocks * self._layout.block_size),
            ("block", step.block_tables, blocks),
            ("row of logits", step.logit_rows, rows),
            ("row of states", step.hidden_rows, rows),
            ("context", step.context_lens, limits.context + 1),
        ):
            if array.size and (int(array.min()) < 0 or int(array.max()) >= bound):
                raise ValueError(f"a step has a {name} outside 0 to {bound - 1}")


def _hidden(lowering: Lowering) -> int:
    """Width of the residual stream: what the output head multiplies."""
    return int(lowering.ops[-1].matrix.k)


def _allocate(layout: KvLayout, heads: int, dim: int, kv_format: KvFormat) -> torch.Tensor:
    size = kv_head_bytes("int8" if kv_format is KvFormat.INT8 else "bfloat16", dim, layout.block_size)
    return committed((layout.num_blocks, heads, size), torch.uint8)
