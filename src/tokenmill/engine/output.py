"""A sequence's sampled tokens to deltas: text, log-probabilities, and the reason it ended."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import Protocol

from tokenmill.core.delta import Delta, FinishReason, TokenLogprob, TopLogprob, Usage
from tokenmill.engine.sampler import Sampled
from tokenmill.engine.sequence import Sequence
from tokenmill.engine.text import TextStream


class Vocabulary(Protocol):
    """What text needs of a tokenizer."""

    @property
    def first_token_strips_space(self) -> bool: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def token_text(self, token_id: int) -> str: ...


@dataclass(frozen=True)
class _Pending:
    """A log-probability entry, and where in the text its token begins."""

    start: int
    entry: TokenLogprob


def logprob_entry(sampled: Sampled, vocabulary: Vocabulary) -> TokenLogprob:
    """A token's log-probability in the words of the vocabulary."""
    text, data = vocabulary.token_text, vocabulary.token_bytes
    return TokenLogprob(
        token_id=sampled.token,
        token=text(sampled.token),
        bytes=data(sampled.token),
        logprob=sampled.logprob or 0.0,
        top=tuple(
            TopLogprob(token_id=token, token=text(token), bytes=data(token), logprob=logprob)
            for token, logprob in sampled.top
        ),
        rank=sampled.rank,
    )


class OutputStream:
    """Turns one sequence's tokens into deltas.

    Entries of tokens are released together with their text, so that nothing of a stop string leaks
    through them.
    """

    def __init__(self, seq: Sequence, vocabulary: Vocabulary, eos_ids: frozenset[int]) -> None:
        params = seq.request.sampling
        self._seq = seq
        self._vocabulary = vocabulary
        self._text = TextStream(params.stop)
        # A decoder drops the space before the first word of a text. An answer that continues its prompt
        # does not begin one.
        self._strip = vocabulary.first_token_strips_space and not any(
            vocabulary.token_bytes(token) for token in seq.request.prompt_ids
        )
        self._eos_ids = frozenset() if params.ignore_eos else eos_ids
        self._stop_ids = frozenset(params.stop_token_ids)
        self._visible_ids = frozenset(params.visible_ids)
        self._min_tokens = params.min_tokens
        self._pending: deque[_Pending] = deque()

    def push(self, sampled: Sampled, *, complete: bool = False) -> Delta:
        """Takes the token just appended to the sequence; the delta says whether it was the last.

        Args:
            complete: no token can follow this one.
        """
        token = sampled.token
        may_stop = self._seq.output_len >= self._min_tokens
        reason: FinishReason | None = None
        stop_reason: str | int | None = None
        text = ""
        if token in self._eos_ids or (token in self._stop_ids and may_stop):
            reason = "stop"
            stop_reason = None if token in self._eos_ids else token
            text = self._text.finish()
            self._note(sampled)
        else:
            text = self._append(sampled, may_stop=may_stop)
            if self._text.stop is not None:
                reason, stop_reason = "stop", self._text.stop
            elif complete or self._seq.total >= self._seq.max_total:
                text += self._text.finish()
                stop_reason = self._text.stop
                reason = "stop" if complete or stop_reason is not None else "length"
        return Delta(
            index=self._seq.index,
            text=text,
            token_ids=(token,),
            logprobs=self._released(ended=reason is not None),
            finish_reason=reason,
            stop_reason=stop_reason,
            usage=None if reason is None else self.usage(),
        )

    def prompt_alone(self) -> Delta:
        """The only delta of a sequence that ends with its prompt."""
        return Delta(index=self._seq.index, finish_reason="length", usage=self.usage())

    def usage(self) -> Usage:
        seq = self._seq
        return Usage(
            prompt_tokens=seq.prompt_len, completion_tokens=seq.output_len, cached_tokens=seq.cached_tokens
        )

    def _append(self, sampled: Sampled, *, may_stop: bool) -> str:
        data = self._shown(sampled.token)
        if self._strip and data:
            data = data.removeprefix(b" ")
            self._strip = False
        self._note(sampled)
        return self._text.push(data, may_stop=may_stop)

    def _shown(self, token: int) -> bytes:
        """What the token adds to the text: its name where the request wants special tokens seen."""
        if token in self._visible_ids:
            return self._vocabulary.token_text(token).encode()
        return self._vocabulary.token_bytes(token)

    def _note(self, sampled: Sampled) -> None:
        if sampled.logprob is not None:
            self._pending.append(_Pending(self._text.decoded, logprob_entry(sampled, self._vocabulary)))

    def _released(self, *, ended: bool) -> tuple[TokenLogprob, ...]:
        """Entries whose token's text has begun to be released; with nothing held back, all of them."""
        text = self._text
        all_out = text.stop is None and (ended or (text.released == text.decoded and not text.midway))
        out = []
        while self._pending and (all_out or self._pending[0].start < text.released):
            out.append(self._pending.popleft().entry)
        return tuple(out)
