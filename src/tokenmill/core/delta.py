"""What comes back: the stream of deltas of one request."""

from __future__ import annotations

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "tool_calls", "content_filter"]


class TopLogprob(msgspec.Struct, frozen=True):
    """One alternative at a position."""

    token_id: int
    token: str
    bytes: bytes
    logprob: float


class TokenLogprob(msgspec.Struct, frozen=True):
    """The token chosen at a position, and the likeliest alternatives in falling order.

    `rank` is its place among all tokens, 1 the likeliest; only tokens of a prompt have one.
    """

    token_id: int
    token: str
    bytes: bytes
    logprob: float
    top: tuple[TopLogprob, ...] = ()
    rank: int | None = None


class Usage(msgspec.Struct, frozen=True):
    """Tokens of one choice. `cached_tokens` is the part of the prompt the prefix cache answered."""

    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int = 0


class Delta(msgspec.Struct, frozen=True, kw_only=True):
    """New output of one choice.

    Attributes:
        index: which of the `n` choices.
        text: complete characters only; concatenated over a choice it is the whole answer.
        token_ids: tokens sampled since the last delta, the end token included.
        logprobs: entries of the tokens whose text has been released, and of a token that ended the answer.
        finish_reason: set on the last delta of a choice, and there alone.
        stop_reason: the stop string or token id that ended the text, None for the model's own end.
        usage: this choice's counts, on its last delta.
        prompt_logprobs: one entry a prompt token, None for the first, on the choice's first delta where the
            request asked for them.
        embedding: little-endian float32 of unit length, on the only delta of an embedding request.
        extra: unknown fields of a foreign upstream, passed through.
    """

    index: int = 0
    text: str = ""
    token_ids: tuple[int, ...] = ()
    logprobs: tuple[TokenLogprob, ...] = ()
    finish_reason: FinishReason | None = None
    stop_reason: str | int | None = None
    usage: Usage | None = None
    prompt_logprobs: tuple[TokenLogprob | None, ...] = ()
    embedding: bytes = b""
    extra: dict[str, object] | None = None
