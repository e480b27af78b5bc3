"""A model as a packed list of operators, and the interface of what runs it.

The operators act on two registers: the residual stream `x` and the current branch `h`. A file in
`engine/models` writes the list; a backend may run it operator by operator or fuse as it likes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np
import numpy.typing as npt

from tokenmill.kernels.step import Step

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class Linear:
    """y = x W^T + b. `weight` is [out, in], `bias` [out].

    Attributes:
        sources: names of the stored matrices whose rows `weight` holds one after another; none where it is
            no model's. In an outline the weight has a shape alone, and a backend reads these itself.
    """

    weight: torch.Tensor
    bias: torch.Tensor | None = None
    sources: tuple[str, ...] = ()


@dataclass(frozen=True)
class Embed:
    """x = table[token] * scale. `table` is [vocabulary, hidden], stored as `source`."""

    table: torch.Tensor
    scale: float = 1.0
    source: str = ""


@dataclass(frozen=True)
class Norm:
    """h = RMSNorm(x) * weight (Zhang & Sennrich 2019). `weight` is [hidden], float32."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class BranchNorm:
    """h = RMSNorm(h) * weight: a norm between a branch and the stream. `weight` is [hidden], float32."""

    weight: torch.Tensor
    eps: float


@dataclass(frozen=True)
class HeadNorms:
    """RMS norms of queries and keys within each head. Weights are [head_dim], float32."""

    query: torch.Tensor
    key: torch.Tensor
    eps: float


@dataclass(frozen=True)
class Attention:
    """h = attention(h), with K and V of this step written to KV layer `layer` first.

    `qkv` gives queries, keys and values side by side: [(heads + 2 kv_heads) * head_dim, hidden]. Queries and
    keys are normed where there are `norms`, then rotated by the table `rotary` of the program.
    """

    layer: int
    qkv: Linear
    out: Linear
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    rotary: int = 0
    norms: HeadNorms | None = None


@dataclass(frozen=True)
class Mlp:
    """h = down(act(gate(h)) * up(h)). `gate_up` gives both side by side: [2 * intermediate, hidden]."""

    gate_up: Linear
    down: Linear
    activation: Literal["silu", "gelu_tanh"] = "silu"


@dataclass(frozen=True)
class Experts:
    """h = weighted sum of the `active` experts that score highest for a row.

    `router` gives the scores: [experts, hidden], float32. Weights are their softmax over all experts; with
    `renormalize` those of the chosen sum to 1.
    """

    router: Linear
    experts: tuple[Mlp, ...]
    active: int
    renormalize: bool


@dataclass(frozen=True)
class Add:
    """x = x + h."""


@dataclass(frozen=True)
class Logits:
    """logits = head(h) for the rows that want them. `head` is [vocabulary, hidden]."""

    head: Linear


Operator = Embed | Norm | BranchNorm | Attention | Mlp | Experts | Add | Logits


@dataclass(frozen=True)
class KvLayout:
    """Shape of the KV cache: per layer [blocks, block_size, kv_heads, head_dim] for K and for V."""

    num_blocks: int
    block_size: int
    shapes: tuple[tuple[int, int], ...]


@dataclass(frozen=True)
class Rotary:
    """Cosines and sines of every position, each [positions, rotary dim / 2], float32."""

    cos: torch.Tensor
    sin: torch.Tensor


@dataclass(frozen=True)
class Program:
    """Operators in order, and the rotary tables their attentions name by place."""

    operators: tuple[Operator, ...]
    rotary: tuple[Rotary, ...]
    vocab_size: int


@dataclass(frozen=True)
class StepOutput:
    """What a step was asked for.

    Attributes:
        logits: [logit rows, vocabulary], float32.
        hidden: [hidden rows, hidden], float32: states after the last norm.
        best: [logit rows], the likeliest token of each, the first of equals, -1 where a logit is no finite
            number; None where the backend does not look for it.
        moved_bytes: between memory and the processor, where the backend counts.
        multiply_adds: likewise.
    """

    logits: torch.Tensor
    hidden: torch.Tensor
    best: npt.NDArray[np.int64] | None = None
    moved_bytes: int = 0
    multiply_adds: int = 0


class StepProgram(Protocol):
    """A program bound to a KV cache: one call a step."""

    def run(self, step: Step) -> StepOutput:
        """Computes the step: KV of every token, logits and hidden states of the rows that want them."""
        ...

    def clear(self, blocks: Sequence[int]) -> None:
        """Zeroes the KV of blocks whose content must not be met again, not even as padding."""
        ...
