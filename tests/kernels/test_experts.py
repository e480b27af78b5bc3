"""Mixtures of experts by hand: who is chosen, with what weight, and that no row feels another."""

from __future__ import annotations

import pytest
import torch

from tokenmill.kernels.experts import mix
from tokenmill.kernels.program import Experts, Linear, Mlp

HIDDEN, INNER, COUNT = 16, 24, 6


def weights(*shape: int) -> torch.Tensor:
    return torch.randn(*shape) * 0.3


@pytest.fixture
def experts() -> Experts:
    torch.manual_seed(1)
    mlps = tuple(
        Mlp(Linear(weights(2 * INNER, HIDDEN)), Linear(weights(HIDDEN, INNER))) for _ in range(COUNT)
    )
    return Experts(Linear(weights(COUNT, HIDDEN)), mlps, active=2, renormalize=False)


def by_hand(op: Experts, row: torch.Tensor, renormalize: bool) -> torch.Tensor:
    shares = torch.softmax(op.router.weight.double() @ row.double(), dim=0)
    chosen = sorted(range(COUNT), key=lambda expert: -shares[expert])[:2]
    whole = sum(shares[expert] for expert in chosen) if renormalize else torch.ones(())
    result = torch.zeros(HIDDEN, dtype=torch.float64)
    for expert in chosen:
        gate, up = (op.experts[expert].gate_up.weight.double() @ row.double()).chunk(2)
        inner = torch.nn.functional.silu(gate) * up
        result += shares[expert] / whole * (op.experts[expert].down.weight.double() @ inner)
    return result


@pytest.mark.parametrize("renormalize", [False, True])
def test_a_row_is_the_weighted_sum_of_its_two_best_experts(experts: Experts, renormalize: bool) -> None:
    op = Experts(experts.router, experts.experts, 2, renormalize)
    x = torch.randn(37, HIDDEN)
    expected = torch.stack([by_hand(op, row, renormalize) for row in x])
    torch.testing.assert_close(mix(op, x).double(), expected, atol=1e-5, rtol=0)


def test_a_row_is_the_same_bits_in_any_batch(experts: Experts) -> None:
    x = torch.randn(150, HIDDEN)
    whole = mix(experts, x)
    for size in (1, 2, 7, 8, 9, 31, 75):
        assert torch.equal(torch.cat([mix(experts, part) for part in torch.split(x, size)]), whole)
    shuffled = torch.randperm(150)
    assert torch.equal(mix(experts, x[shuffled]), whole[shuffled])
