"""A request inside the engine: its choices, their streams, and what is known for its final event."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from collections.abc import Sequence as Items
from dataclasses import dataclass, field

from tokenmill.core.delta import TokenLogprob
from tokenmill.core.request import GenerateRequest, SamplingParams
from tokenmill.engine.grammar.matcher import Matcher
from tokenmill.engine.output import OutputStream, Vocabulary
from tokenmill.engine.pooling import Pool
from tokenmill.engine.sampler_state import SamplerState
from tokenmill.engine.sequence import Sequence


@dataclass(eq=False)
class Choice:
    """One sequence with its sampler and text."""

    seq: Sequence
    sampler: SamplerState
    stream: OutputStream
    last_token_at: float | None = None


@dataclass(eq=False)
class RequestState:
    """All choices of a request. Times are monotonic seconds.

    The first choice reads the prompt for all: `prompt_logprobs` has an entry for each token up to the last
    position read, `pool` the states of an embedding.
    """

    request: GenerateRequest
    accepted_at: float
    choices: list[Choice]
    open: int
    started_at: float | None = None
    first_token_at: float | None = None
    preemptions: int = 0
    wasted_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)
    prompt_logprobs: list[TokenLogprob | None] = field(default_factory=list)
    pool: Pool = field(default_factory=Pool)

    @property
    def completion_tokens(self) -> int:
        return sum(choice.seq.output_len for choice in self.choices)

    @property
    def cached_tokens(self) -> int:
        return sum(choice.seq.cached_tokens for choice in self.choices)


def open_request(
    request: GenerateRequest,
    *,
    now: float,
    first_arrival: int,
    max_total: int,
    vocabulary: Vocabulary,
    eos_ids: Iterable[int],
    matchers: Items[Matcher] = (),
) -> RequestState:
    """Makes the sequences of a request; later choices follow the first, to share its prompt's KV.

    Args:
        matchers: one a choice where the request has a grammar.
    """
    params = request.sampling if request.pooling is None else SamplingParams()
    ends = frozenset(eos_ids)
    seed = params.seed if params.seed is not None else secrets.randbits(63)
    forbidden = {*params.stop_token_ids} if params.ignore_eos else {*ends, *params.stop_token_ids}
    choices: list[Choice] = []
    for index in range(params.n):
        seq = Sequence(
            request=request,
            index=index,
            arrival=first_arrival + index,
            prompt_len=len(request.prompt_ids),
            tokens=list(request.prompt_ids),
            max_total=max_total,
            leader=choices[0].seq if choices else None,
            unread=range(0) if choices else _read_positions(request),
        )
        sampler = SamplerState(
            params,
            seed,
            index,
            prompt=request.prompt_ids,
            forbidden_until_min=forbidden,
            matcher=matchers[index] if matchers else None,
        )
        choices.append(Choice(seq, sampler, OutputStream(seq, vocabulary, ends)))
    return RequestState(
        request=request,
        accepted_at=now,
        choices=choices,
        open=params.n,
        prompt_logprobs=[] if params.prompt_logprobs is None else [None],
    )


def _read_positions(request: GenerateRequest) -> range:
    """Prompt positions whose logits or states the request asks for. The logits of one tell the next token."""
    last = len(request.prompt_ids) - 1
    if request.pooling is not None:
        return range(0 if request.pooling == "mean" else last, last + 1)
    return range(0 if request.sampling.prompt_logprobs is None else last)
