"""Logits to tokens, for all rows of a step at once.

Order: penalties and bias on the raw logits, then the grammar, then temperature, top-k, top-p (over what top-k
left), min-p.
Log-probabilities are raw: of the model's logits before any of these. A row is drawn the same way whatever
its neighbours ask for.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass

import torch

from tokenmill.engine.grammar.masks import constrain
from tokenmill.engine.grammar.matcher import GrammarFailed
from tokenmill.engine.random import uniform
from tokenmill.engine.sampler_state import SamplerState

# Below this a temperature is greedy: dividing by it would overflow.
GREEDY_BELOW = 1e-5
# The likeliest tokens looked at for top-k and top-p before a whole row is sorted.
HEAD = 1024
# Probabilities summed up at once when a draw is located.
PART = 256


@dataclass(frozen=True)
class Sampled:
    """One row's token. `logprob` and `top` are None and empty unless the request asked for them.

    `rank` is the token's place among all, 1 the likeliest; only tokens of a prompt have one.
    """

    token: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()
    rank: int | None = None


class CorruptLogits(Exception):
    """A row of logits is not finite. `row` says which."""

    def __init__(self, row: int) -> None:
        super().__init__(f"row {row} has logits that are not numbers")
        self.row = row


def sample(logits: torch.Tensor, states: Items[SamplerState]) -> list[Sampled | GrammarFailed]:
    """Draws one token a row, or says why its grammar allows none.

    Args:
        logits: [rows, vocabulary], float32; changed in place.
        states: one a row.

    Raises:
        CorruptLogits: a row holds NaN or infinity; no row has been drawn.
    """
    finite = logits.sum(dim=-1).isfinite()  # one pass: whatever is no number makes the sum none
    if not bool(finite.all()):
        raise CorruptLogits(int(finite.logical_not().nonzero()[0]))
    reported = _reported_rows(logits, states)
    _penalize(logits, states)
    _bias(logits, states)
    failed = _follow_grammars(logits, states)
    tokens = logits.argmax(dim=-1)
    random = [row for row, state in enumerate(states) if state.params.temperature >= GREEDY_BELOW]
    if random:
        chosen = [states[row] for row in random]
        tokens[random] = _draw(logits if len(random) == len(states) else logits[random], chosen)
    found = _with_logprobs(tokens.tolist(), reported, states)
    return [failed.get(row, sampled) for row, sampled in enumerate(found)] if failed else [*found]


def _reported_rows(logits: torch.Tensor, states: Items[SamplerState]) -> dict[int, torch.Tensor]:
    """Raw log-probabilities of the rows whose request wants some."""
    rows = [row for row, state in enumerate(states) if state.params.logprobs is not None]
    if not rows:
        return {}
    return dict(zip(rows, torch.log_softmax(logits[rows], dim=-1), strict=True))


def _with_logprobs(
    tokens: Items[int], reported: dict[int, torch.Tensor], states: Items[SamplerState]
) -> list[Sampled]:
    found = [Sampled(token) for token in tokens]
    counts = {row: states[row].params.logprobs or 0 for row in reported}
    if not counts:
        return found
    table = torch.stack(list(reported.values()))
    values, ids = table.topk(min(max(counts.values()), table.shape[-1]), dim=-1)
    for at, (row, count) in enumerate(counts.items()):
        top = tuple(zip(ids[at, :count].tolist(), values[at, :count].tolist(), strict=True))
        found[row] = Sampled(tokens[row], float(table[at, tokens[row]]), top)
    return found


def _penalize(logits: torch.Tensor, states: Items[SamplerState]) -> None:
    """Repetition (Keskar et al. 2019, over prompt and output), frequency and presence (output alone)."""
    rows = [(row, state) for row, state in enumerate(states) if state.penalized]
    if not rows:
        return
    seen = [state.seen() for _, state in rows]
    at = (_owners(rows, [len(ids) for ids, _ in seen]), torch.cat([ids for ids, _ in seen]))
    lengths = torch.tensor([len(ids) for ids, _ in seen])

    def each(value: Callable[[SamplerState], float]) -> torch.Tensor:
        return torch.tensor([value(state) for _, state in rows]).repeat_interleave(lengths)

    counts = torch.cat([counts for _, counts in seen])
    factor = each(lambda state: state.params.repetition_penalty)
    value = logits[at]
    value = torch.where(value > 0, value / factor, value * factor)
    value -= each(lambda state: state.params.frequency_penalty) * counts
    value -= each(lambda state: state.params.presence_penalty) * (counts > 0)
    logits[at] = value


def _bias(logits: torch.Tensor, states: Items[SamplerState]) -> None:
    """`logit_bias`, and no end before `min_tokens`; where there is a grammar, that is its business."""
    rows = [(row, state) for row, state in enumerate(states) if len(state.bias_ids)]
    if rows:
        owners = _owners(rows, [len(state.bias_ids) for _, state in rows])
        ids = torch.cat([state.bias_ids for _, state in rows])
        values = torch.cat([state.bias_values for _, state in rows])
        logits.index_put_((owners, ids), values, accumulate=True)
    for row, state in enumerate(states):
        if state.output_len < state.params.min_tokens and state.matcher is None:
            logits[row, state.forbidden_until_min] = -math.inf


def _follow_grammars(logits: torch.Tensor, states: Items[SamplerState]) -> dict[int, GrammarFailed]:
    matchers = {row: state.matcher for row, state in enumerate(states) if state.matcher is not None}
    if not matchers:
        return {}
    return constrain(logits, matchers, {row: states[row].avoided() for row in matchers})


def _owners(rows: Items[tuple[int, SamplerState]], lengths: Items[int]) -> torch.Tensor:
    return torch.tensor([row for row, _ in rows]).repeat_interleave(torch.tensor(lengths))


def _draw(logits: torch.Tensor, states: Items[SamplerState]) -> torch.Tensor:
    """One random token a row, [rows]; by inverting the cumulated distribution at a counter-based number."""
    params = [state.params for state in states]
    scaled = logits / torch.tensor([p.temperature for p in params])[:, None]
    probs = torch.softmax(scaled, dim=-1)
    cut = [row for row, p in enumerate(params) if p.top_k or p.top_p < 1]
    if cut:
        top_k = torch.tensor([params[row].top_k for row in cut])
        top_p = torch.tensor([params[row].top_p for row in cut], dtype=torch.float64)
        probs[cut] = _likeliest(probs[cut], top_k, top_p)
    floor = torch.tensor([p.min_p for p in params])[:, None]
    probs.masked_fill_(probs < floor * probs.amax(dim=-1, keepdim=True), 0)
    drawn = torch.tensor([uniform(s.seed, s.choice, s.output_len) for s in states], dtype=torch.float64)
    return _locate(probs, drawn)


def _likeliest(probs: torch.Tensor, top_k: torch.Tensor, top_p: torch.Tensor) -> torch.Tensor:
    """What top-k (0 keeps all) and then top-p leave of `probs` [rows, vocabulary]; the rest is 0.

    Top-p is the least head whose mass reaches it (Holtzman et al. 2020); the first token always stays.
    """
    width = probs.shape[-1]
    kept = torch.zeros_like(probs)
    rows = torch.arange(len(probs))
    for size in (min(HEAD, width), width):
        ranked, order = probs[rows].topk(size, dim=-1)
        cumulated = ranked.cumsum(dim=-1, dtype=torch.float64)
        limit = torch.where(top_k[rows] > 0, top_k[rows], width)[:, None]
        # The mass top-p is a share of: the first k tokens, or all.
        mass = cumulated.gather(-1, (limit - 1).clamp(max=size - 1))
        mass = torch.where(limit > size, 1.0, mass)
        goal = torch.where(top_p[rows] >= 1, torch.inf, top_p[rows])[:, None] * mass
        rank = torch.arange(size)
        ranked = ranked.masked_fill((rank >= limit) | (cumulated - ranked >= goal), 0)
        kept[rows] = torch.zeros_like(kept[rows]).scatter_(-1, order, ranked)
        # A row is settled when its cut lies within what was looked at.
        rows = rows[((ranked[:, -1] > 0) & (limit.squeeze(-1) > size)).nonzero().squeeze(-1)]
        if len(rows) == 0:
            break
    return kept


def _locate(probs: torch.Tensor, drawn: torch.Tensor) -> torch.Tensor:
    """The token at which the cumulated `probs` [rows, vocabulary] pass the share `drawn` [rows] of their sum.

    First among sums of parts, then within one, in doubles: a sum over a large vocabulary would round rare
    tokens away.
    """
    rows = torch.arange(len(probs))
    padding = -probs.shape[-1] % PART
    parts = torch.nn.functional.pad(probs, (0, padding)).view(len(probs), -1, PART)
    sums = parts.sum(dim=-1, dtype=torch.float64)
    cumulated = sums.cumsum(dim=-1)
    part = _first_above(cumulated, drawn * cumulated[:, -1])
    before = cumulated[rows, part] - sums[rows, part]
    inner = parts[rows, part].double().cumsum(dim=-1)
    return part * PART + _first_above(inner, drawn * cumulated[:, -1] - before)


def _first_above(cumulated: torch.Tensor, value: torch.Tensor) -> torch.Tensor:
    """Index of the first entry above `value`, which rounding may have put just past the last one."""
    below_last = torch.nextafter(cumulated[:, -1], torch.zeros(1, dtype=torch.float64))
    return torch.searchsorted(cumulated, torch.minimum(value, below_last)[:, None], right=True).squeeze(-1)
