"""The step program in PyTorch operators: the oracle of every faster backend, and the fallback.

A row's result depends on its own tokens alone, bit for bit: see `dense` for products, `paged_attention` for
attention, `experts` for mixtures of experts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as functional

from tokenmill.kernels.dense import fill_rows, linear, mlp, rms_norm
from tokenmill.kernels.experts import mix
from tokenmill.kernels.memory import committed
from tokenmill.kernels.paged_attention import QueryGroup, attend, query_groups
from tokenmill.kernels.program import (
    Add,
    Attention,
    BranchNorm,
    Embed,
    Experts,
    HeadNorms,
    KvLayout,
    Linear,
    Logits,
    Mlp,
    Norm,
    Program,
    Rotary,
    StepOutput,
)
from tokenmill.kernels.step import Step
from tokenmill.planner.products import filled_rows


class ReferenceProgram:
    """Runs a `Program` operator by operator."""

    def __init__(self, program: Program, layout: KvLayout, kv_dtype: torch.dtype) -> None:
        self._program = program
        self._layout = layout
        self._keys = _allocate(layout, kv_dtype)
        self._values = _allocate(layout, kv_dtype)

    def clear(self, blocks: Sequence[int]) -> None:
        at = torch.tensor(blocks, dtype=torch.int64)
        for cache in (*self._keys, *self._values):
            cache[at] = 0

    @torch.no_grad()  # not inference mode: the sampler changes the logits in place
    def run(self, step: Step) -> StepOutput:
        rows = len(step.token_ids)
        padding = filled_rows(rows) - rows
        scratch = self._layout.num_blocks * self._layout.block_size
        token_ids = _padded(step.token_ids, padding, 0)
        slots = _padded(step.slots, padding, scratch)
        positions = _padded(step.positions, padding, 0)
        rotary = [
            Rotary(table.cos[positions][:, None], table.sin[positions][:, None])
            for table in self._program.rotary
        ]
        groups = query_groups(step, self._layout, self._keys[0].dtype)
        x = h = torch.empty(0)
        for operator in self._program.operators:
            match operator:
                case Embed(table, scale):
                    x = functional.embedding(token_ids, table).float()
                    x = x if scale == 1 else x * scale
                case Norm(weight, eps):
                    h = rms_norm(x, weight, eps)
                case BranchNorm(weight, eps):
                    h = rms_norm(h.float(), weight, eps)
                case Attention():
                    h = self._attend(operator, h, slots, rotary[operator.rotary], groups)
                case Mlp():
                    h = mlp(h, operator)
                case Experts():
                    h = fill_rows(mix(operator, h[:rows]))  # padding rows would wake experts of their own
                case Add():
                    x = x + h
                case Logits(head):
                    hidden = h[torch.from_numpy(step.hidden_rows)]
                    return StepOutput(self._logits(h[torch.from_numpy(step.logit_rows)], head), hidden)
        raise RuntimeError("a program must end with Logits")

    def _logits(self, h: torch.Tensor, head: Linear) -> torch.Tensor:
        """[rows, hidden] to [rows, vocabulary]."""
        if len(h) == 0:
            return torch.empty(0, self._program.vocab_size)
        return linear(fill_rows(h), head)[: len(h)].float()

    def _attend(
        self, op: Attention, h: torch.Tensor, slots: torch.Tensor, rotary: Rotary, groups: list[QueryGroup]
    ) -> torch.Tensor:
        """[rows, hidden] to [rows, hidden], K and V of the rows written to their slots."""
        rotated = op.heads + op.kv_heads
        qkv = linear(h, op.qkv).view(len(h), rotated + op.kv_heads, op.head_dim)
        qk = normed(qkv[:, :rotated].float(), op.norms, op.heads)
        qk = rotate(qk, rotary)
        keys, values = self._keys[op.layer], self._values[op.layer]
        keys.flatten(0, 1)[slots] = qk[:, op.heads :].to(keys.dtype)
        values.flatten(0, 1)[slots] = qkv[:, rotated:].to(values.dtype)
        out = attend(op, qk[:, : op.heads] * op.scale, keys, values, groups)
        return linear(out.view(len(h), -1), op.out)


def normed(qk: torch.Tensor, norms: HeadNorms | None, heads: int) -> torch.Tensor:
    """Queries (the first `heads`) and keys, each RMS-normed per head where the layer norms them."""
    if norms is None:
        return qk
    query = rms_norm(qk[:, :heads], norms.query, norms.eps)
    return torch.cat((query, rms_norm(qk[:, heads:], norms.key, norms.eps)), dim=1)


def rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotary embedding in halves (Su et al. 2021) of the first components; the others pass.

    x [rows, heads, dim]; angles [rows, 1, rotary dim / 2].
    """
    cos, sin = rotary.cos, rotary.sin
    half = cos.shape[-1]
    first, second, rest = x[..., :half], x[..., half : 2 * half], x[..., 2 * half :]
    return torch.cat((first * cos - second * sin, second * cos + first * sin, rest), dim=-1)


def _padded(values: np.typing.NDArray[np.int64], count: int, fill: int) -> torch.Tensor:
    return functional.pad(torch.from_numpy(values), (0, count), value=fill)


def _allocate(layout: KvLayout, dtype: torch.dtype) -> list[torch.Tensor]:
    # One block more than the pool: rows added as padding write there.
    blocks = layout.num_blocks + 1
    return [committed((blocks, layout.block_size, *shape), dtype) for shape in layout.shapes]
