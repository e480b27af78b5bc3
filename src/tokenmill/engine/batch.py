"""A scheduler's plan as the flat arrays of a step."""

from __future__ import annotations

from collections.abc import Sequence as Items

import numpy as np

from tokenmill.engine.scheduler import Chunk
from tokenmill.kernels.step import Step


def build_step(chunks: Items[Chunk], block_size: int) -> Step:
    """Lays the chunks' tokens one after another.

    Logits are wanted of the last token of each chunk that samples, and behind all of these of the prompt
    positions that chunks read; hidden states of those that are read for an embedding.
    """
    counts = np.array([chunk.count for chunk in chunks], dtype=np.int64)
    ends = np.cumsum(counts)
    width = max(len(chunk.seq.blocks) for chunk in chunks)
    tables = np.zeros((len(chunks), width), dtype=np.int64)
    token_ids: list[int] = []
    positions = np.concatenate([np.arange(c.start, c.start + c.count, dtype=np.int64) for c in chunks])
    for row, chunk in enumerate(chunks):
        tables[row, : len(chunk.seq.blocks)] = chunk.seq.blocks
        token_ids += chunk.seq.tokens[chunk.start : chunk.start + chunk.count]
    reads = [
        (np.arange(c.reads.start, c.reads.stop) - c.start + end - c.count, c.seq.scores_prompt)
        for c, end in zip(chunks, ends, strict=True)
        if c.reads
    ]
    sampled = ends[[chunk.samples for chunk in chunks]] - 1
    scored = [rows for rows, scores in reads if scores]
    pooled = [rows for rows, scores in reads if not scores]
    owners = np.repeat(np.arange(len(chunks)), counts)
    slots = tables[owners, positions // block_size] * block_size + positions % block_size
    return Step(
        token_ids=np.array(token_ids, dtype=np.int64),
        positions=positions,
        slots=slots,
        query_starts=np.concatenate(([0], ends)),
        context_lens=np.array([c.start + c.count for c in chunks], dtype=np.int64),
        block_tables=tables,
        logit_rows=np.concatenate([sampled, *scored]) if scored else sampled,
        hidden_rows=np.concatenate(pooled) if pooled else ends[:0],
    )
