"""Sampling against hand arithmetic, row by row and batched."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch

from tokenmill.core.request import SamplingParams
from tokenmill.engine.random import uniform
from tokenmill.engine.sampler import HEAD, CorruptLogits, Sampled, sample
from tokenmill.engine.sampler_state import SamplerState


def state(
    prompt: tuple[int, ...] = (), outputs: tuple[int, ...] = (), seed: int = 0, **params: Any
) -> SamplerState:
    made = SamplerState(SamplingParams(**params), seed, 0, prompt=prompt, forbidden_until_min=(0,))
    for token in outputs:
        made.observe(token)
    return made


def draw(logits: torch.Tensor, states: Sequence[SamplerState]) -> list[Sampled]:
    """`sample` without grammars: every row gets a token."""
    found = sample(logits, states)
    tokens = [row for row in found if isinstance(row, Sampled)]
    assert len(tokens) == len(found)
    return tokens


def one(logits: list[float], made: SamplerState) -> Sampled:
    return draw(torch.tensor([logits]), [made])[0]


def allowed(logits: list[float], draws: int = 400, **params: Any) -> set[int]:
    """Tokens that come up over many seeds."""
    rows = torch.tensor([logits] * draws)
    return {s.token for s in draw(rows, [state(seed=seed, **params) for seed in range(draws)])}


def test_temperature_zero_takes_the_likeliest() -> None:
    assert one([0.1, 2.0, 1.9], state(temperature=0)).token == 1


def test_draws_follow_the_distribution() -> None:
    # softmax of (0, ln 2, ln 5) is (1/8, 2/8, 5/8)
    rows = torch.tensor([[0.0, math.log(2), math.log(5)]]).repeat(4000, 1)
    counts = Counter(s.token for s in draw(rows, [state(seed=seed) for seed in range(4000)]))
    for token, share in enumerate((1 / 8, 2 / 8, 5 / 8)):
        # five standard deviations of a binomial
        assert abs(counts[token] / 4000 - share) < 5 * math.sqrt(share * (1 - share) / 4000)


def test_temperature_sharpens() -> None:
    # at temperature 1/2 the odds of (0, ln 2, ln 5) become 1 : 4 : 25
    rows = torch.tensor([[0.0, math.log(2), math.log(5)]]).repeat(3000, 1)
    counts = Counter(s.token for s in draw(rows, [state(seed=s, temperature=0.5) for s in range(3000)]))
    assert abs(counts[2] / 3000 - 25 / 30) < 5 * math.sqrt(25 / 30 * 5 / 30 / 3000)


def test_top_k_keeps_k() -> None:
    assert allowed([1.0, 0.9, 0.8, 0.7], top_k=2) == {0, 1}


def test_top_p_keeps_the_least_head_that_reaches_it() -> None:
    # probabilities 0.5, 0.3, 0.2: 0.5 alone reaches 0.5; 0.51 needs the second
    logits = [math.log(0.5), math.log(0.3), math.log(0.2)]
    assert allowed(logits, top_p=0.49) == {0}
    assert allowed(logits, top_p=0.6) == {0, 1}
    assert allowed(logits, top_p=1.0) == {0, 1, 2}


def test_top_p_works_on_what_top_k_left() -> None:
    # of 0.4, 0.3, 0.2, 0.1 top-k 2 leaves 4/7 and 3/7: top-p 0.55 is reached by the first alone
    logits = [math.log(p) for p in (0.4, 0.3, 0.2, 0.1)]
    assert allowed(logits, top_p=0.55) == {0, 1}
    assert allowed(logits, top_k=2, top_p=0.55) == {0}


def test_min_p_is_relative_to_the_likeliest() -> None:
    logits = [math.log(p) for p in (0.5, 0.3, 0.15, 0.05)]
    assert allowed(logits, min_p=0.25) == {0, 1, 2}


def test_presence_and_frequency_count_outputs_alone() -> None:
    # token 1 came out twice: 2.0 - 0.5 - 2 x 0.3 = 0.9 < 1.0; token 2 was only in the prompt
    made = state(prompt=(2,), outputs=(1, 1), temperature=0, presence_penalty=0.5, frequency_penalty=0.3)
    assert one([0.0, 2.0, 1.0], made).token == 2
    assert one([0.0, 2.2, 1.0], made).token == 1


def test_repetition_divides_positive_and_multiplies_negative_logits() -> None:
    made = state(prompt=(0,), outputs=(1,), temperature=0, repetition_penalty=2.0)
    # 3 / 2 = 1.5 and 1.8 / 2 = 0.9 against 1.0
    assert one([3.0, 1.8, 1.0], made).token == 0
    assert one([1.8, 1.8, 1.0], made).token == 2
    # -1 x 2 = -2 against -1.5
    assert one([-1.0, -1.0, -1.5], made).token == 2


def test_bias_moves_a_token() -> None:
    assert one([0.0, 1.0, 2.0], state(temperature=0, logit_bias={0: 3.0})).token == 0
    assert allowed([0.0, 0.0], logit_bias={0: -100.0}) == {1}


def test_no_end_before_min_tokens() -> None:
    assert one([5.0, 1.0], state(temperature=0, min_tokens=2, outputs=(1,))).token == 1
    assert one([5.0, 1.0], state(temperature=0, min_tokens=2, outputs=(1, 1))).token == 0


def test_logprobs_are_raw() -> None:
    found = one([0.0, math.log(3)], state(temperature=0, logprobs=2, logit_bias={0: 50.0}))
    assert found.token == 0
    assert found.logprob == pytest.approx(math.log(1 / 4), abs=1e-6)
    assert [token for token, _ in found.top] == [1, 0]
    assert found.top[0][1] == pytest.approx(math.log(3 / 4), abs=1e-6)


def test_logprobs_zero_reports_only_the_chosen_token() -> None:
    assert one([0.0, 1.0], state(temperature=0, logprobs=0)).top == ()
    assert one([0.0, 1.0], state(temperature=0)).logprob is None


def test_a_row_does_not_depend_on_its_neighbours() -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(6, 50, generator=generator)
    states = [
        state(temperature=0),
        state(seed=3, top_k=5),
        state(seed=4, top_p=0.7),
        state(seed=5, min_p=0.1),
        state(seed=6, repetition_penalty=1.3, outputs=(1, 2), prompt=(3,)),
        state(seed=7, logprobs=3, temperature=1.7),
    ]
    together = draw(logits.clone(), states)
    alone = [draw(logits[row : row + 1].clone(), [states[row]])[0] for row in range(6)]
    assert [s.token for s in together] == [s.token for s in alone]


@pytest.mark.parametrize("size", [5, 256, 1000, 3000])
@pytest.mark.parametrize(
    "params", [{"top_p": 0.3}, {"top_p": 0.999}, {"top_k": 7}, {"top_k": 2000, "top_p": 0.99}]
)
def test_filters_keep_what_a_full_sort_would(size: int, params: dict[str, Any]) -> None:
    generator = torch.Generator().manual_seed(size)
    logits = torch.randn(1, size, generator=generator) * 0.5
    probs = torch.softmax(logits.double(), -1)[0]
    ranked, order = probs.sort(descending=True)
    ranked = ranked[: params.get("top_k") or size]
    before = ranked.cumsum(0) - ranked
    kept = set(order[: len(ranked)][before < params.get("top_p", 2.0) * ranked.sum()].tolist())
    rows = logits.repeat(3000, 1)
    drawn = {s.token for s in draw(rows, [state(seed=seed, **params) for seed in range(3000)])}
    assert drawn <= kept
    assert len(drawn) >= min(len(kept), 300) * 0.9


def test_a_flat_distribution_beyond_the_head_is_cut_exactly() -> None:
    # 4 x HEAD equal tokens but for the first, which is a little likelier: half the mass is half the tokens
    size = 4 * HEAD
    logits = torch.zeros(2000, size)
    drawn = {s.token for s in draw(logits, [state(seed=seed, top_p=0.5) for seed in range(2000)])}
    assert len(drawn) > HEAD / 2
    kept = _kept(torch.zeros(1, size), top_p=0.5)
    assert int((kept > 0).sum()) == size // 2


def _kept(logits: torch.Tensor, top_p: float) -> torch.Tensor:
    from tokenmill.engine.sampler import _likeliest

    return _likeliest(
        torch.softmax(logits, -1), torch.tensor([0]), torch.tensor([top_p], dtype=torch.float64)
    )


def test_a_temperature_near_zero_is_greedy_not_overflow() -> None:
    assert one([0.1, 2.0, 1.9], state(temperature=1e-308)).token == 1


def test_a_row_that_is_not_a_number_is_named() -> None:
    logits = torch.zeros(3, 4)
    logits[1, 2] = math.nan
    with pytest.raises(CorruptLogits) as caught:
        draw(logits, [state(), state(), state()])
    assert caught.value.row == 1


def test_random_numbers_depend_on_seed_choice_and_position_alone() -> None:
    assert uniform(1, 0, 0) == uniform(1, 0, 0)
    assert (
        len({uniform(1, 0, 0), uniform(2, 0, 0), uniform(1, 1, 0), uniform(1, 0, 1), uniform(-1, 0, 0)}) == 5
    )
    draws = [uniform(7, 0, position) for position in range(2000)]
    assert all(0 < u < 1 for u in draws)
    # mean of uniforms: standard deviation 1 / sqrt(12 n)
    assert abs(sum(draws) / 2000 - 0.5) < 5 / math.sqrt(12 * 2000)
