"""What runs a model: native kernels where this machine has them, PyTorch operators else."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Protocol

import torch

from tokenmill.core.errors import ConfigError, NativeUnavailable
from tokenmill.core.flags import ModelFlags
from tokenmill.engine.models import build_program
from tokenmill.hardware.cpu import multiplies_bfloat16
from tokenmill.hardware.isa import Isa, this_isa
from tokenmill.kernels.cpu.library import step_library
from tokenmill.kernels.cpu.lower import require_head_dim
from tokenmill.kernels.program import KvLayout, StepProgram
from tokenmill.kernels.reference import ReferenceProgram
from tokenmill.models.source import ModelSource
from tokenmill.models.spec import ModelSpec
from tokenmill.planner.costs import Costs, ReferenceCosts
from tokenmill.planner.memory import MemoryPlan

log = logging.getLogger(__name__)

_FORMATS = {torch.float32: "F32", torch.bfloat16: "BF16"}
_TYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "bf16": torch.bfloat16}


# What multiplies the matrices of the reference backend.
TORCH = "torch"


class Backend(Protocol):
    """One way to run a model.

    Attributes:
        costs: what it takes, for the memory plan.
        matrices: type of matrices as it is told to people, like `bfloat16` or `int4`.
        kernels: what multiplies them: an instruction set, or `TORCH`.
    """

    @property
    def costs(self) -> Costs: ...
    @property
    def matrices(self) -> str: ...
    @property
    def kernels(self) -> str: ...

    def read(self, source: ModelSource, plan: MemoryPlan) -> Callable[[], StepProgram]:
        """Reads the weights; what it returns allocates the KV cache and gives the program.

        Raises:
            ModelFileError: the weights cannot be used.
        """
        ...


class ReferenceBackend:
    """PyTorch operators.

    Args:
        dtype: of matrices and products.
        kv_dtype: of the KV cache.
    """

    kernels = TORCH

    def __init__(self, dtype: torch.dtype, kv_dtype: torch.dtype) -> None:
        self._dtype = dtype
        self._kv_dtype = kv_dtype
        self.matrices = str(dtype).removeprefix("torch.")
        self.costs = ReferenceCosts(_FORMATS[dtype], kv_dtype.itemsize)

    def read(self, source: ModelSource, plan: MemoryPlan) -> Callable[[], StepProgram]:
        program = build_program(source.spec, source.weights, self._dtype, plan.max_model_len)
        layout = kv_layout(source, plan.num_kv_blocks, plan.block_size)
        return lambda: ReferenceProgram(program, layout, self._kv_dtype)


def kv_layout(source: ModelSource, num_blocks: int, block_size: int) -> KvLayout:
    shapes = tuple((layer.kv_heads, layer.head_dim) for layer in source.spec.layers)
    return KvLayout(num_blocks, block_size, shapes)


def choose_dtype(flag: str) -> torch.dtype:
    """`auto` is bfloat16 where the processor multiplies it natively, else float32."""
    if flag == "auto":
        return torch.bfloat16 if multiplies_bfloat16() else torch.float32
    return _TYPES[flag]


def reference_backend(flags: ModelFlags) -> ReferenceBackend:
    """
    Raises:
        ConfigError: flags only native kernels know.
    """
    for name, value in (("quantization", flags.quantization), ("kv_cache_dtype", flags.kv_cache_dtype)):
        if value in ("int8", "int4"):
            raise ConfigError(f"{name}={value} needs native kernels, which are not in use here")
    dtype = choose_dtype(flags.dtype)
    kv = flags.kv_cache_dtype
    return ReferenceBackend(dtype, dtype if kv == "auto" else _TYPES[kv])


def native_isa(spec: ModelSpec, flags: ModelFlags) -> Isa | None:
    """The level to run at; None, with one warning unless that is what was asked for, where there is none."""
    if flags.dtype == "float32" or flags.kv_cache_dtype == "float32":
        return None
    isa = this_isa()
    if isa is None:
        return None
    try:
        require_head_dim(max(layer.head_dim for layer in spec.layers))
        step_library(isa)
    except NativeUnavailable as fault:
        log.warning(
            "native kernels are not used: %s; PyTorch operators take their place, several times slower", fault
        )
        return None
    return isa
