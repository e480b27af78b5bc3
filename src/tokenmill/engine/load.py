"""From an open model to a step program: type, memory plan, weights, KV pool, warm-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tokenmill.core.flags import ModelFlags
from tokenmill.engine.models import build_program
from tokenmill.hardware.allocator import keep_freed_memory, return_freed_memory
from tokenmill.hardware.cpu import multiplies_bfloat16, usable_cores
from tokenmill.hardware.memory import available_bytes, rss_bytes
from tokenmill.kernels.program import KvLayout, Program
from tokenmill.kernels.reference import ReferenceProgram
from tokenmill.kernels.step import Step
from tokenmill.models.source import ModelSource
from tokenmill.planner.memory import MemoryPlan, plan_memory

_FORMATS = {torch.float32: "F32", torch.bfloat16: "BF16"}
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}
WARM_TOKENS = 64
WARM_SEQUENCES = 8


@dataclass(frozen=True)
class MemoryPart:
    """One part of resident memory: bytes planned, and bytes by which the process grew."""

    name: str
    planned: int
    measured: int


@dataclass(frozen=True)
class MemoryReport:
    """Planned against measured memory after loading."""

    parts: tuple[MemoryPart, ...]

    @property
    def planned(self) -> int:
        return sum(part.planned for part in self.parts)

    @property
    def measured(self) -> int:
        return sum(part.measured for part in self.parts)


@dataclass(frozen=True)
class LoadedModel:
    """A warm program. `dtype` is the type of its products."""

    program: ReferenceProgram
    plan: MemoryPlan
    report: MemoryReport
    dtype: torch.dtype


def choose_dtype(flag: str) -> torch.dtype:
    """`auto` is bfloat16 where the processor multiplies it natively, else float32."""
    if flag == "auto":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    return _TYPES[flag]


def load_model(source: ModelSource, flags: ModelFlags, told: Callable[[str, int], None]) -> LoadedModel:
    """Loads, allocates and warms, on the calling thread.

    Args:
        told: called after each phase (read, pool, warm) with its name and the bytes it was about.

    Raises:
        InsufficientMemory: it does not fit what is free.
        ModelFileError: the weights cannot be used.
    """
    return_freed_memory()
    torch.set_num_threads(usable_cores())
    torch.set_grad_enabled(False)
    dtype = choose_dtype(flags.dtype)
    kv_dtype = dtype if flags.kv_cache_dtype == "auto" else _TYPES[flags.kv_cache_dtype]
    imports = rss_bytes()
    plan = plan_memory(
        source.spec,
        flags,
        matrix_format=_FORMATS[dtype],
        kv_element_bytes=kv_dtype.itemsize,
        available=available_bytes(),
    )
    packed = build_program(source.spec, source.weights, dtype, plan.max_model_len)
    source.weights.close()
    keep_freed_memory()
    weights = rss_bytes()
    told("read", plan.weights)
    program = _bind(packed, source, plan, kv_dtype)
    pool = rss_bytes()
    told("pool", plan.kv_pool)
    warm(program, plan, flags)
    warmed = rss_bytes()
    told("warm", 0)
    parts = (
        MemoryPart("imports", plan.imports, imports),
        MemoryPart("weights", plan.weights + plan.tables, weights - imports),
        MemoryPart("kv cache", plan.kv_pool, pool - weights),
        MemoryPart("working memory", plan.activations, warmed - pool),
    )
    return LoadedModel(program, plan, MemoryReport(parts), dtype)


def _bind(packed: Program, source: ModelSource, plan: MemoryPlan, kv_dtype: torch.dtype) -> ReferenceProgram:
    shapes = tuple((layer.kv_heads, layer.head_dim) for layer in source.spec.layers)
    return ReferenceProgram(packed, KvLayout(plan.num_kv_blocks, plan.block_size, shapes), kv_dtype)


def warm(program: ReferenceProgram, plan: MemoryPlan, flags: ModelFlags) -> None:
    """Runs a prefill and a decode step, so that the first request does not pay for first calls."""
    tokens = min(WARM_TOKENS, flags.max_num_batched_tokens, plan.max_model_len, plan.kv_tokens)
    blocks = np.arange(-(-tokens // plan.block_size), dtype=np.int64)[None]
    positions = np.arange(tokens, dtype=np.int64)
    zeros = np.zeros(tokens, dtype=np.int64)
    ends = np.array([0, tokens], dtype=np.int64)
    program.run(Step(zeros, positions, positions, ends, ends[1:], blocks, ends[1:] - 1))
    rows = min(WARM_SEQUENCES, tokens)
    rank = np.arange(rows + 1, dtype=np.int64)
    last = np.full(rows, tokens - 1, dtype=np.int64)
    tables = np.repeat(blocks, rows, axis=0)
    program.run(Step(zeros[:rows], last, last, rank, last + 1, tables, rank[:-1]))
