"""From an open model to a step program: type, memory plan, weights, KV pool, warm-up."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags
from tokenmill.engine.backend import Backend, native_isa, reference_backend
from tokenmill.engine.native_backend import NativeBackend
from tokenmill.engine.native_weights import Encode
from tokenmill.engine.self_test import FormatRefused
from tokenmill.hardware.allocator import keep_freed_memory, return_freed_memory
from tokenmill.hardware.cpu import usable_cores
from tokenmill.hardware.memory import available_bytes, rss_bytes
from tokenmill.kernels.program import StepProgram
from tokenmill.kernels.step import Step
from tokenmill.models.source import ModelSource
from tokenmill.planner.memory import MemoryPlan, plan_memory

log = logging.getLogger(__name__)

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
    """A warm program.

    Attributes:
        matrices: type they are held in.
        kernels: what multiplies them: an instruction set, or `torch`.
    """

    program: StepProgram
    plan: MemoryPlan
    report: MemoryReport
    matrices: str
    kernels: str


def load_model(
    source: ModelSource, flags: ModelFlags, told: Callable[[str, int], None], encode: Encode
) -> LoadedModel:
    """Loads, allocates and warms, on the calling thread.

    Args:
        told: called after each phase (read, pool, warm) with its name and the bytes it was about.
        encode: text to tokens, for the self-test of packed weights.

    Raises:
        InsufficientMemory: it does not fit what is free.
        ModelFileError: the weights cannot be used.
        ConfigError: flags this machine or model does not serve.
    """
    return_freed_memory()
    torch.set_num_threads(usable_cores())
    torch.set_grad_enabled(False)
    imports = rss_bytes()
    backend = _backend(source, flags, encode)
    plan = plan_memory(source.spec, flags, costs=backend.costs, available=available_bytes())
    try:
        bind = backend.read(source, plan)
    except FormatRefused as refused:
        if flags.quantization != "auto":
            raise ConfigError(
                f"quantization={flags.quantization} is refused for this model: {refused}"
            ) from None
        log.warning("packed weights are refused (%s); bfloat16 takes their place", refused)
        return load_model(source, flags.model_copy(update={"quantization": "none"}), told, encode)
    source.weights.close()
    keep_freed_memory()
    weights = rss_bytes()
    told("read", plan.weights)
    program = bind()
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
    return LoadedModel(program, plan, MemoryReport(parts), backend.matrices, backend.kernels)


def _backend(source: ModelSource, flags: ModelFlags, encode: Encode) -> Backend:
    isa = native_isa(source.spec, flags)
    return reference_backend(flags) if isa is None else NativeBackend(isa, source, flags, encode)


def warm(program: StepProgram, plan: MemoryPlan, flags: ModelFlags) -> None:
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
