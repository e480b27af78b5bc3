"""The step program in PyTorch operators: the oracle of every faster backend, and the fallback.

A row's result depends on its own tokens alone, bit for bit:
- products have a multiple of `ROWS` rows, where the libraries sum each row in the same order;
- attention sees KV padded to one of few lengths, over which the library adds in the same order. Padding adds
  exact zeros, so neither the batch nor the way a prompt was cut into chunks can be seen in a result.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as functional

from tokenmill.kernels.memory import committed
from tokenmill.kernels.program import (
    Add,
    Attention,
    Embed,
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
from tokenmill.planner.memory import ATTENTION_ROWS, ATTENTION_TOKENS

ROWS = 8
# A context is padded to whole parts of 512, in which PyTorch's attention works through KV, and for the rest
# to one of the short lengths that it adds up in the order of the beginning of a whole part (256, for one,
# is halved first).
SHORT_SPANS = (128, 192, 384)
LONG_SPAN = 512


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
        padding = -rows % ROWS
        scratch = self._layout.num_blocks * self._layout.block_size
        token_ids = _padded(step.token_ids, padding, 0)
        slots = _padded(step.slots, padding, scratch)
        positions = _padded(step.positions, padding, 0)
        rotary = [
            Rotary(table.cos[positions][:, None], table.sin[positions][:, None])
            for table in self._program.rotary
        ]
        groups = _query_groups(step, self._layout, self._keys[0].dtype)
        logit_rows = torch.from_numpy(step.logit_rows)
        x = h = torch.empty(0)
        for operator in self._program.operators:
            match operator:
                case Embed(table):
                    x = functional.embedding(token_ids, table).float()
                case Norm(weight, eps):
                    h = _rms_norm(x, weight, eps)
                case Attention():
                    h = self._attend(operator, h, slots, rotary[operator.rotary], groups)
                case Mlp(gate_up, down):
                    gate, up = _linear(h, gate_up).chunk(2, dim=-1)
                    h = _linear(functional.silu(gate) * up, down)
                case Add():
                    x = x + h
                case Logits(head):
                    hidden = h[torch.from_numpy(step.hidden_rows)]
                    return StepOutput(self._logits(h[logit_rows], head), hidden)
                case _:
                    raise NotImplementedError(type(operator).__name__)
        raise RuntimeError("a program must end with Logits")

    def _logits(self, h: torch.Tensor, head: Linear) -> torch.Tensor:
        """[rows, hidden] to [rows, vocabulary]."""
        if len(h) == 0:
            return torch.empty(0, self._program.vocab_size)
        return _linear(functional.pad(h, (0, 0, 0, -len(h) % ROWS)), head)[: len(h)].float()

    def _attend(
        self,
        op: Attention,
        h: torch.Tensor,
        slots: torch.Tensor,
        rotary: Rotary,
        groups: list[QueryGroup],
    ) -> torch.Tensor:
        """[rows, hidden] to [rows, hidden]."""
        rows, rotated = len(h), op.heads + op.kv_heads
        qkv = _linear(h, op.qkv).view(rows, rotated + op.kv_heads, op.head_dim)
        qk = _rotate(qkv[:, :rotated].float(), rotary)
        keys, values = self._keys[op.layer], self._values[op.layer]
        keys.flatten(0, 1)[slots] = qk[:, op.heads :].to(keys.dtype)
        values.flatten(0, 1)[slots] = qkv[:, rotated:].to(values.dtype)
        q = qk[:, : op.heads] * op.scale
        out = torch.zeros(rows, op.heads, op.head_dim)
        for group in groups:
            count, queries = group.rows.shape
            shared = op.heads // op.kv_heads
            # The heads that share a KV head are further rows of its matrix product.
            mine = q[group.rows].view(count, queries, op.kv_heads, shared, op.head_dim)
            mine = mine.permute(0, 2, 1, 3, 4).reshape(count, op.kv_heads, queries * shared, op.head_dim)
            mask = group.mask(op.window, shared)
            result = _attention(mine, _gather(keys, group), _gather(values, group), mask)
            result = result.view(count, op.kv_heads, queries, shared, op.head_dim).permute(0, 2, 1, 3, 4)
            out[group.rows] = result.reshape(count, queries, op.heads, op.head_dim)
        return _linear(out.view(rows, -1), op.out)


@dataclass(frozen=True)
class QueryGroup:
    """Sequences whose queries are computed together: same number of queries, same padded context.

    Attributes:
        rows: [sequences, queries], rows of the step.
        positions: [sequences, queries], the last position each query sees.
        blocks: [sequences, blocks], KV blocks of the padded context.
        span: padded context length, in tokens.
        dtype: type of the mask, that of K and V.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    blocks: torch.Tensor
    span: int
    dtype: torch.dtype
    _masks: dict[tuple[int | None, int], torch.Tensor] = field(default_factory=dict)

    def mask(self, window: int | None, shared: int) -> torch.Tensor:
        """[sequences, 1, rows, span]: 0 where a query looks, -inf elsewhere; the same for every layer.

        Rows are queries x `shared` heads, filled up to a multiple of `ROWS`.
        """
        made = self._masks.get((window, shared))
        if made is None:
            key = torch.arange(self.span)
            hidden = key > self.positions[..., None]
            if window is not None:
                hidden |= key <= self.positions[..., None] - window
            made = torch.zeros(hidden.shape, dtype=self.dtype).masked_fill_(hidden, -math.inf)
            made = made.repeat_interleave(shared, dim=1)
            made = functional.pad(made, (0, 0, 0, -made.shape[1] % ROWS))[:, None]
            self._masks[window, shared] = made
        return made


def _query_groups(step: Step, layout: KvLayout, dtype: torch.dtype) -> list[QueryGroup]:
    """Single queries of similar context together; longer runs of queries alone, in bounded pieces."""
    members: dict[tuple[int, int], list[tuple[int, int, int]]] = defaultdict(list)
    for sequence in range(len(step.context_lens)):
        first, last = int(step.query_starts[sequence]), int(step.query_starts[sequence + 1])
        start = int(step.context_lens[sequence]) - (last - first)
        for offset in range(0, last - first, ATTENTION_ROWS):
            queries = min(ATTENTION_ROWS, last - first - offset)
            span = _span(start + offset + queries, layout.block_size)
            members[queries, span].append((sequence, first + offset, start + offset))
    return [
        piece
        for (queries, span), found in members.items()
        for piece in _grouped(step, found, queries, span, layout, dtype)
    ]


def _grouped(
    step: Step,
    found: list[tuple[int, int, int]],
    queries: int,
    span: int,
    layout: KvLayout,
    dtype: torch.dtype,
) -> list[QueryGroup]:
    # Pieces are bounded so that what they gather stays within the memory plan.
    size = max(1, ATTENTION_TOKENS // span) if queries == 1 else 1
    width = span // layout.block_size
    given = step.block_tables[:, :width]
    # A context is padded with the block that padding rows write to, never with another sequence's.
    tables = np.full((len(given), width), layout.num_blocks, dtype=np.int64)
    held = np.arange(given.shape[1]) < -(-step.context_lens // layout.block_size)[:, None]
    tables[:, : given.shape[1]][held] = given[held]
    offsets = np.arange(queries)
    groups = []
    for at in range(0, len(found), size):
        sequences, rows, starts = (np.array(column) for column in zip(*found[at : at + size], strict=True))
        groups.append(
            QueryGroup(
                rows=torch.from_numpy(rows[:, None] + offsets),
                positions=torch.from_numpy(starts[:, None] + offsets),
                blocks=torch.from_numpy(tables[sequences, :width]),
                span=span,
                dtype=dtype,
            )
        )
    return groups


def _gather(cache: torch.Tensor, group: QueryGroup) -> torch.Tensor:
    """KV of a group out of its blocks: [sequences, kv_heads, span, head_dim]."""
    # A whole block as one row: selecting rows is many times faster than indexing.
    taken = cache.flatten(1).index_select(0, group.blocks.flatten())
    return taken.view(len(group.blocks), group.span, *cache.shape[2:]).transpose(1, 2)


def _attention(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, mask: torch.Tensor) -> torch.Tensor:
    """softmax(q k^T + mask) v. q [batch, heads, rows, dim]; k, v [batch, heads, span, dim]."""
    rows = q.shape[2]
    q = functional.pad(q, (0, 0, 0, -rows % ROWS)).to(k.dtype)
    out = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, scale=1.0)
    return out[:, :, :rows].float()


def _span(context: int, block_size: int) -> int:
    """Padded length of a context, in tokens and whole blocks: see the module's note on padding."""
    whole = context // LONG_SPAN * LONG_SPAN
    rest = context - whole
    if rest == 0:
        return whole
    short = (span for span in SHORT_SPANS if rest <= span and span % block_size == 0)
    return whole + next(short, LONG_SPAN)


def _rotate(x: torch.Tensor, rotary: Rotary) -> torch.Tensor:
    """Rotary embedding in halves (Su et al. 2021). x [rows, heads, dim]; angles [rows, 1, dim / 2]."""
    first, second = x.chunk(2, dim=-1)
    cos, sin = rotary.cos, rotary.sin
    return torch.cat((first * cos - second * sin, second * cos + first * sin), dim=-1)


def _rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _linear(x: torch.Tensor, op: Linear) -> torch.Tensor:
    return functional.linear(x.to(op.weight.dtype), op.weight, op.bias)


def _padded(values: np.typing.NDArray[np.int64], count: int, fill: int) -> torch.Tensor:
    return functional.pad(torch.from_numpy(values), (0, count), value=fill)


def _allocate(layout: KvLayout, dtype: torch.dtype) -> list[torch.Tensor]:
    # One block more than the pool: rows added as padding write there.
    blocks = layout.num_blocks + 1
    return [committed((blocks, layout.block_size, *shape), dtype) for shape in layout.shapes]
