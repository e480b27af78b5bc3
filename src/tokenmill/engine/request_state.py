"""A request inside the engine: its choices, their streams, and what is known for its final event."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field

from tokenmill.core.request import GenerateRequest
from tokenmill.engine.output import OutputStream, Vocabulary
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
    """All choices of a request. Times are monotonic seconds."""

    request: GenerateRequest
    accepted_at: float
    choices: list[Choice]
    open: int
    started_at: float | None = None
    first_token_at: float | None = None
    preemptions: int = 0
    wasted_tokens: int = 0
    finish_reasons: list[str] = field(default_factory=list)

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
) -> RequestState:
    """Makes the sequences of a request; later choices follow the first, to share its prompt's KV."""
    params = request.sampling
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
        )
        sampler = SamplerState(params, seed, index, prompt=request.prompt_ids, forbidden_until_min=forbidden)
        choices.append(Choice(seq, sampler, OutputStream(seq, vocabulary, ends)))
    return RequestState(request=request, accepted_at=now, choices=choices, open=params.n)
