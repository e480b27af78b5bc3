"""Logits to tokens, for all rows of a step at once.

Order: penalties and bias on the raw logits, then temperature, top-k, top-p (over what top-k left), min-p.
Log-probabilities are raw: of the model's logits before any of these.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

import torch

from tokenmill.core.request import SamplingParams
from tokenmill.engine.random import uniform


@dataclass
class SamplerState:
    """What sampling needs to know of one sequence, kept up to date by `observe`.

    Attributes:
        seed: the request's, or one drawn for it.
        forbidden_until_min: tokens that may not come before `min_tokens` outputs.
    """

    params: SamplingParams
    seed: int
    choice: int
    prompt_tokens: frozenset[int]
    forbidden_until_min: tuple[int, ...] = ()
    output_len: int = 0
    output_counts: Counter[int] = field(default_factory=Counter)

    def observe(self, token: int) -> None:
        """Counts a sampled token."""
        self.output_len += 1
        self.output_counts[token] += 1


@dataclass(frozen=True)
class Sampled:
    """One row's token. `logprob` and `top` are None and empty unless the request asked for them."""

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class CorruptLogits(Exception):
    """A row of logits is not finite. `row` says which."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} has logits that are not numbers")
        self.row = row


def sample(logits: torch.Tensor, states: Items[SamplerState]) -> list[Sampled]:
    """Draws one token a row.

    Args:
        logits: [rows, vocabulary], float32; changed in place.
        states: one a row.

    Raises:
        CorruptLogits: a row holds NaN or infinity; no row has been drawn.
    """
    finite = logits.isfinite().all(dim=-1)
    if not bool(finite.all()):
        raise CorruptLogits(int(finite.logical_not().nonzero()[0]))
    reported = _raw_logprobs(logits, states)
    _penalize(logits, states)
    _bias(logits, states)
    tokens = logits.argmax(dim=-1)
    random = [row for row, state in enumerate(states) if state.params.temperature > 0]
    if random:
        chosen = [states[row] for row in random]
        tokens[random] = _draw(logits if len(random) == len(states) else logits[random], chosen)
    return [
        _report(int(token), reported.get(row), states[row].params.logprobs)
        for row, token in enumerate(tokens.tolist())
    ]


def _raw_logprobs(logits: torch.Tensor, states: Items[SamplerState]) -> dict[int, torch.Tensor]:
    rows = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    if not rows:
        return {}
    return dict(zip(rows, torch.log_softmax(logits[rows], dim=-1), strict=True))


def _report(token: int, logprobs: torch.Tensor | None, count: int | None) -> Sampled:
    if logprobs is None:
        return Sampled(token)
    top: tuple[tuple[int, float], ...] = ()
    if count:
        values, ids = logprobs.topk(min(count, len(logprobs)))
        top = tuple(zip(ids.tolist(), values.tolist(), strict=True))
    return Sampled(token, float(logprobs[token]), top)


def _penalize(logits: torch.Tensor, states: Items[SamplerState]) -> None:
    """Repetition (Keskar et al. 2019, over prompt and output), frequency and presence (output alone)."""
    rows: list[int] = []
    tokens: list[int] = []
    factors: list[float] = []
    offsets: list[float] = []
    for row, state in enumerate(states):
        p, counts = state.params, state.output_counts
        repeats = p.repetition_penalty != 1
        if not (repeats or p.presence_penalty or p.frequency_penalty):
            continue
        seen = sorted(state.prompt_tokens.union(counts) if repeats else counts)
        rows += [row] * len(seen)
        tokens += seen
        factors += [p.repetition_penalty] * len(seen)
        offsets += [
            p.frequency_penalty * counts[token] + (p.presence_penalty if counts[token] else 0.0)
            for token in seen
        ]
    if rows:
        at = (torch.tensor(rows), torch.tensor(tokens))
        factor = torch.tensor(factors)
        value = logits[at]
        logits[at] = torch.where(value > 0, value / factor, value * factor) - torch.tensor(offsets)


def _bias(logits: torch.Tensor, states: Items[SamplerState]) -> None:
    """`logit_bias`, and no end before `min_tokens`."""
    rows: list[int] = []
    tokens: list[int] = []
    values: list[float] = []
    for row, state in enumerate(states):
        for token, value in state.params.logit_bias.items():
            rows.append(row)
            tokens.append(token)
            values.append(value)
        if state.output_len < state.params.min_tokens:
            for token in state.forbidden_until_min:
                rows.append(row)
                tokens.append(token)
                values.append(-math.inf)
    if rows:
        logits.index_put_((torch.tensor(rows), torch.tensor(tokens)), torch.tensor(values), accumulate=True)


def _draw(logits: torch.Tensor, states: Items[SamplerState]) -> torch.Tensor:
    """One random token a row, [rows]; by inverting the cumulated distribution at a counter-based number."""
    params = [state.params for state in states]
    # Doubles, so that a sum over a large vocabulary does not round rare tokens away.
    scaled = logits.double() / torch.tensor([p.temperature for p in params], dtype=torch.float64)[:, None]
    probs = torch.softmax(scaled, dim=-1)
    cut = [row for row, p in enumerate(params) if p.top_k or p.top_p < 1]
    if cut:
        ranked, order = probs[cut].sort(dim=-1, descending=True, stable=True)
        _keep_top_k(ranked, [params[row].top_k for row in cut])
        _keep_top_p(ranked, [params[row].top_p for row in cut])
        # Back in the vocabulary's order: a row is drawn the same way whatever its neighbours ask for.
        probs[cut] = torch.empty_like(ranked).scatter_(-1, order, ranked)
    floor = torch.tensor([p.min_p for p in params], dtype=torch.float64)[:, None]
    probs.masked_fill_(probs < floor * probs.amax(dim=-1, keepdim=True), 0)
    drawn = torch.tensor([uniform(s.seed, s.choice, s.output_len) for s in states], dtype=torch.float64)
    cumulated = probs.cumsum(dim=-1)
    at = torch.searchsorted(cumulated, drawn[:, None] * cumulated[:, -1:], right=True)
    return at.clamp_(max=probs.shape[-1] - 1).squeeze(-1)


def _keep_top_k(probs: torch.Tensor, top_k: Items[int]) -> None:
    """`probs` [rows, vocabulary] in falling order, changed in place. 0 keeps all."""
    size = probs.shape[-1]
    limit = torch.tensor([k or size for k in top_k])[:, None]
    probs.masked_fill_(torch.arange(size) >= limit, 0)


def _keep_top_p(probs: torch.Tensor, top_p: Items[float]) -> None:
    """Keeps the least head whose mass reaches `top_p` (Holtzman et al. 2020); the first always stays."""
    cumulated = probs.cumsum(dim=-1)
    limit = torch.tensor(top_p, dtype=torch.float64)[:, None]
    # 1 keeps all, whatever rounding made of the sum.
    limit = torch.where(limit >= 1, torch.inf, limit * cumulated[:, -1:])
    probs.masked_fill_(cumulated - probs >= limit, 0)
