"""Products, norms and MLPs on rows, in PyTorch.

Products have as many rows as `filled_rows` gives, a multiple of 8: there the libraries sum each row in one
order, whatever the others. The numbers are few because each is compiled, and the compiled product kept.
"""

from __future__ import annotations

from typing import Literal

import torch
import torch.nn.functional as functional

from tokenmill.kernels.program import Linear, Mlp
from tokenmill.planner.products import filled_rows


def fill_rows(x: torch.Tensor) -> torch.Tensor:
    """[rows, width] with rows of zeros up to `filled_rows`."""
    return functional.pad(x, (0, 0, 0, filled_rows(len(x)) - len(x)))


def linear(x: torch.Tensor, op: Linear) -> torch.Tensor:
    """[rows, in] to [rows, out], in the type of the weight. `rows` is filled up."""
    return functional.linear(x.to(op.weight.dtype), op.weight, op.bias)


def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    """Over the last dimension; float32 in and out."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def mlp(x: torch.Tensor, op: Mlp) -> torch.Tensor:
    """[rows, hidden] to [rows, hidden]. `rows` is filled up."""
    return linear(gated(linear(x, op.gate_up), op.activation), op.down)


def gated(gate_up: torch.Tensor, activation: Literal["silu", "gelu_tanh"]) -> torch.Tensor:
    """[rows, 2 * intermediate], gate and up side by side, to [rows, intermediate]."""
    gate, up = gate_up.chunk(2, dim=-1)
    return _activate(gate, activation) * up


def _activate(x: torch.Tensor, name: Literal["silu", "gelu_tanh"]) -> torch.Tensor:
    return functional.silu(x) if name == "silu" else functional.gelu(x, approximate="tanh")
