"""A model on the native step program."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
import torch

from tokenmill.core.flags import ModelFlags
from tokenmill.engine.backend import kv_layout
from tokenmill.engine.models import build_program
from tokenmill.engine.native_weights import Encode, packed_operators
from tokenmill.hardware.cpu import usable_cores
from tokenmill.hardware.isa import Isa
from tokenmill.kernels.cpu.abi import KvFormat
from tokenmill.kernels.cpu.lower import Lowering
from tokenmill.kernels.cpu.program import NativeProgram, StepLimits
from tokenmill.kernels.program import KvLayout, Program, StepProgram
from tokenmill.kernels.step import Step
from tokenmill.models.source import ModelSource
from tokenmill.planner.costs import NativeCosts, step_bounds
from tokenmill.planner.memory import MemoryPlan

_TEST_BLOCK = 32


class NativeBackend:
    """Packed weights, int8 or bfloat16 KV.

    Args:
        encode: gives the tokens of the self-test's text.
    """

    def __init__(self, isa: Isa, source: ModelSource, flags: ModelFlags, encode: Encode) -> None:
        self._isa = isa
        self._flags = flags
        self._encode = encode
        self._kv = KvFormat.BF16 if flags.kv_cache_dtype in ("bf16", "bfloat16") else KvFormat.INT8
        self._threads = usable_cores()
        self.kernels = isa.name
        self.matrices = flags.quantization
        self.costs = NativeCosts(
            tensors=source.weights.tensors,
            quantization=flags.quantization,
            kv_format="bfloat16" if self._kv is KvFormat.BF16 else "int8",
            threads=self._threads,
        )

    def read(self, source: ModelSource, plan: MemoryPlan) -> Callable[[], StepProgram]:
        """
        Raises:
            FormatRefused: the self-test refuses the packed weights.
        """
        outline = build_program(source.spec, source.weights, torch.bfloat16, plan.max_model_len, outline=True)

        def answer(lowering: Lowering, text: npt.NDArray[np.int64]) -> torch.Tensor:
            return self._logits(source, outline, lowering, text)

        settings = (self._isa.name, self._kv.name)
        lowering, _ = packed_operators(
            source, outline, self._flags.quantization, settings, self._encode, answer
        )
        step = step_bounds(self._flags, plan.max_model_len, 4, 1)
        limits = StepLimits(step.tokens, step.logits, plan.max_model_len, self._threads)
        layout = kv_layout(source, plan.num_kv_blocks, plan.block_size)
        return lambda: NativeProgram(self._isa, outline, lowering, layout, self._kv, limits)

    def _logits(
        self, source: ModelSource, outline: Program, lowering: Lowering, text: npt.NDArray[np.int64]
    ) -> torch.Tensor:
        """[tokens, vocabulary] of a text, in a cache of its own."""
        tokens = len(text)
        layout: KvLayout = kv_layout(source, -(-tokens // _TEST_BLOCK), _TEST_BLOCK)
        limits = StepLimits(tokens, tokens, tokens, self._threads)
        program = NativeProgram(self._isa, outline, lowering, layout, self._kv, limits)
        rank = np.arange(tokens, dtype=np.int64)
        ends = np.array([0, tokens], dtype=np.int64)
        table = np.arange(layout.num_blocks, dtype=np.int64)[None]
        return program.run(Step(text, rank, rank, ends, ends[1:], table, rank)).logits
