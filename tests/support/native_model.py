"""A whole model on the native kernels, its matrices packed on the spot."""

from __future__ import annotations

import torch

from tokenmill.engine.models import build_program
from tokenmill.hardware.cpu import usable_cores
from tokenmill.hardware.isa import Isa, this_isa
from tokenmill.kernels.cpu.abi import KvFormat, RowsAs
from tokenmill.kernels.cpu.lower import Lowering
from tokenmill.kernels.cpu.pack import pack_named
from tokenmill.kernels.cpu.program import NativeProgram, StepLimits
from tokenmill.kernels.program import KvLayout
from tokenmill.models.source import ModelSource
from tokenmill.planner.packing import Quantization


def native_program(
    source: ModelSource,
    *,
    num_blocks: int,
    block_size: int,
    quantization: Quantization = "auto",
    kv_format: KvFormat = KvFormat.INT8,
    context: int = 2048,
    rows: int = 512,
    isa: Isa | None = None,
) -> NativeProgram:
    """Bound to a cache of its own, for steps of up to `rows` tokens."""
    level = isa or this_isa()
    if level is None:
        raise RuntimeError("native code is switched off")
    outline = build_program(source.spec, source.weights, torch.bfloat16, context, outline=True)
    rows_as = RowsAs.BF16 if quantization == "none" else RowsAs.INT8
    lowering = Lowering(
        lambda linear, gated: pack_named(source.weights, linear.sources, quantization, gated=gated), rows_as
    )
    lowering.extend(outline.operators)
    shapes = tuple((layer.kv_heads, layer.head_dim) for layer in source.spec.layers)
    layout = KvLayout(num_blocks, block_size, shapes)
    limits = StepLimits(rows, 256, context, usable_cores())
    return NativeProgram(level, outline, lowering, layout, kv_format, limits)
