"""A model as a packed list of operators, and the interface of what runs it.

The operators act on two registers: the residual stream `x` and the current branch `h`. A file in
`engine/models` writes the list; a backend may run it operator by operator or fuse as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from tokenmill.kernels.step import Step

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Linear:
    """y = x W^T + b. `weight` is [out, in], `bias` [out]."""

    weight: torch.Tensor
    bias: torch.Tensor | None = None


@dataclass(frozen=True)
class Embed:
    """x = table[token]. `table` is [vocabulary, hidden]."""

    table: torch.Tensor


@dataclass(frozen=True)
class Norm:
    """h = RMSNorm(x) * weight (Zhang & Sennrich 2019). `weight` is [hidden], float32."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class Attention:
    """h = attention(h), with K and V of this step written to KV layer `layer` first.

    `qkv` gives queries, keys and values side by side: [(heads + 2 kv_heads) * head_dim, hidden].
    """

    layer: int
    qkv: Linear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None


@dataclass(frozen=True)
class Mlp:
    """h = down(silu(gate(h)) * up(h)). `gate_up` gives both side by side: [2 * intermediate, hidden]."""

    gate_up: Linear
    down: Linear


@dataclass(frozen=True)
class Add:
    """x = x + h."""


@dataclass(frozen=True)
class Logits:
    """logits = head(h) for the rows that want them. `head` is [vocabulary, hidden]."""

    head: Linear


Operator = Embed | Norm | Attention | Mlp | Add | Logits


@dataclass(frozen=True)
class KvLayout:
    """Shape of the KV cache: per layer [blocks, block_size, kv_heads, head_dim] for K and for V."""

    num_blocks: int
    block_size: int
    shapes: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Program:
    """Operators in order, and the rotary table.

    Attributes:
        cos, sin: [positions, rotary dim / 2], float32.
    """

    operators: tuple[Operator, ...]
    cos: torch.Tensor
    sin: torch.Tensor
    vocab_size: int


class StepProgram(Protocol):
    """A program bound to a KV cache: one call a step."""

    def run(self, step: Step) -> torch.Tensor:
        """Computes the step and returns its logits, [rows, vocabulary], float32."""
        ...

    def clear(self, blocks: Sequence[int]) -> None:
        """Zeroes the KV of blocks whose content must not be met again, not even as padding."""
        ...
