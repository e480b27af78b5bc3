"""Logits of prompt positions to log-probabilities of the tokens that follow them."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from tokenmill.engine.sampler import Sampled

# Parts of the vocabulary in which ranks are counted: PyTorch copies booleans to 8-byte integers to add them.
_PARTS = 16


def score(logits: torch.Tensor, following: Items[int], alternatives: int) -> list[Sampled]:
    """What the model thought of each following token before it saw it; raw, like the sampler's.

    Args:
        logits: [positions, vocabulary], float32.
        following: the token behind each position.
        alternatives: likeliest tokens to report beside it.
    """
    table = torch.log_softmax(logits, dim=-1)
    own = table.gather(-1, torch.tensor(following)[:, None])
    parts = torch.split(table, -(-table.shape[-1] // _PARTS), dim=-1)
    ranks = torch.stack([(part > own).sum(dim=-1) for part in parts]).sum(dim=0) + 1
    values, ids = table.topk(min(alternatives, table.shape[-1]), dim=-1)
    columns = (own.squeeze(-1).tolist(), ids.tolist(), values.tolist(), ranks.tolist())
    return [
        Sampled(token, logprob, tuple(zip(top_ids, top_values, strict=True)), rank)
        for token, logprob, top_ids, top_values, rank in zip(following, *columns, strict=True)
    ]
