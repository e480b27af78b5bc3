"""A mixture of experts in PyTorch: each row is routed, then each expert computes the rows that chose it."""

from __future__ import annotations

import torch

from tokenmill.kernels.dense import fill_rows, linear, mlp
from tokenmill.kernels.program import Experts


def mix(op: Experts, x: torch.Tensor) -> torch.Tensor:
    """[rows, hidden] to [rows, hidden], float32.

    A row's result is the same bits in any batch: an expert's rows are filled up like those of any product,
    and a row adds up its experts in the order of their numbers.
    """
    weights, chosen = _route(op, x)
    by_expert = chosen.flatten().argsort(stable=True)
    counts = torch.bincount(chosen.flatten(), minlength=len(op.experts)).tolist()
    out = torch.zeros(x.shape)
    for expert, places in zip(op.experts, torch.split(by_expert, counts), strict=True):
        if len(places):
            rows = places // op.active
            result = mlp(fill_rows(x[rows]), expert)[: len(rows)].float()
            out.index_add_(0, rows, result * weights.flatten()[places, None])
    return out


def _route(op: Experts, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Weights and numbers of the experts each row chooses, both [rows, active]; weights are float32."""
    scores = linear(fill_rows(x), op.router)[: len(x)].float()
    weights, chosen = scores.softmax(dim=-1).topk(op.active, dim=-1)
    if op.renormalize:
        weights = weights / weights.sum(dim=-1, keepdim=True)
    return weights, chosen
