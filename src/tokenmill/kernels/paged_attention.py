"""Attention over a paged KV cache, in PyTorch: which queries are computed together, and over what.

Attention sees KV padded to one of few lengths, over which the library adds in the same order. Padding adds
exact zeros, so neither the batch nor the way a prompt was cut into chunks can be seen in a result.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

import numpy as np
import torch
import torch.nn.functional as functional

from tokenmill.kernels.program import Attention, KvLayout
from tokenmill.kernels.step import Step
from tokenmill.planner.activations import ATTENTION_ROWS, ATTENTION_SPAN, ATTENTION_TOKENS, ROWS

# A context is padded to whole parts of 512, in which PyTorch's attention works through KV, and for the rest
# to one of the short lengths that it adds up in the order of the beginning of a whole part (256, for one,
# is halved first).
SHORT_SPANS = (128, 192, 384)


def attend(
    op: Attention, queries: torch.Tensor, keys: torch.Tensor, values: torch.Tensor, groups: list[QueryGroup]
) -> torch.Tensor:
    """softmax(q k^T) v for every query of a step; rows in no group are 0.

    Args:
        queries: [rows, heads, head_dim], rotated and scaled.
        keys, values: the KV cache of the layer, [blocks, block_size, kv_heads, head_dim].

    Returns:
        [rows, heads, head_dim], float32.
    """
    out = torch.zeros(queries.shape)
    shared = op.heads // op.kv_heads
    for group in groups:
        count, length = group.rows.shape
        # The heads that share a KV head are further rows of its matrix product.
        mine = queries[group.rows].view(count, length, op.kv_heads, shared, op.head_dim)
        mine = mine.permute(0, 2, 1, 3, 4).reshape(count, op.kv_heads, length * shared, op.head_dim)
        mask = group.mask(op.window, shared)
        result = _attention(mine, _gather(keys, group), _gather(values, group), mask)
        result = result.view(count, op.kv_heads, length, shared, op.head_dim).permute(0, 2, 1, 3, 4)
        out[group.rows] = result.reshape(count, length, op.heads, op.head_dim)
    return out


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


def query_groups(step: Step, layout: KvLayout, dtype: torch.dtype) -> list[QueryGroup]:
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
    whole = context // ATTENTION_SPAN * ATTENTION_SPAN
    rest = context - whole
    if rest == 0:
        return whole
    short = (span for span in SHORT_SPANS if rest <= span and span % block_size == 0)
    return whole + next(short, ATTENTION_SPAN)
