"""Logits of prompt positions to log-probabilities of the tokens that follow them."""

from __future__ import annotations

from collections.abc import Sequence as Items

import torch

from tokenmill.engine.sampler import Sampled


def score(logits: torch.Tensor, following: Items[int], alternatives: int) -> list[Sampled]:
    """What the model thought of each following token before it saw it; raw, like the sampler's.

    Args:
        logits: [positions, vocabulary], float32.
        following: the token behind each position.
        alternatives: likeliest tokens to report beside it.
    """
    table = torch.log_softmax(logits, dim=-1)
    own = table.gather(-1, torch.tensor(following)[:, None])
    ranks = (table > own).sum(dim=-1) + 1
    values, ids = table.topk(min(alternatives, table.shape[-1]), dim=-1)
    columns = (own.squeeze(-1).tolist(), ids.tolist(), values.tolist(), ranks.tolist())
    return [
        Sampled(token, logprob, tuple(zip(top_ids, top_values, strict=True)), rank)
        for token, logprob, top_ids, top_values, rank in zip(following, *columns, strict=True)
    ]
