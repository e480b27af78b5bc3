"""The answers of the OpenAI API as structs: their order of members is what clients see."""

from __future__ import annotations

import functools
import hashlib
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from tokenmill.core.clock import Clock
from tokenmill.core.delta import Delta, FinishReason, TokenLogprob
from tokenmill.core.version import VERSION

MIN_LOGPROB = -9999.0


@dataclass(frozen=True)
class Head:
    """What every chunk of an answer repeats. `created` is seconds since the Unix epoch."""

    id: str
    created: int
    model: str
    system_fingerprint: str

    @classmethod
    def new(cls, prefix: str, clock: Clock, model: str) -> Head:
        return cls(prefix + uuid.uuid4().hex, int(clock.wall()), model, fingerprint(model))


@functools.cache
def fingerprint(model: str) -> str:
    """The same for equal model names and releases: what could change an answer under a fixed seed."""
    return "fp_" + hashlib.sha256(f"{VERSION} {model}".encode()).hexdigest()[:12]


class PromptTokensDetails(msgspec.Struct):
    cached_tokens: int = 0
    audio_tokens: int = 0


class CompletionTokensDetails(msgspec.Struct):
    reasoning_tokens: int = 0
    audio_tokens: int = 0
    accepted_prediction_tokens: int = 0
    rejected_prediction_tokens: int = 0


class UsageObject(msgspec.Struct):
    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptTokensDetails
    completion_tokens_details: CompletionTokensDetails


class UsageSum:
    """Adds up the choices of an answer: each prompt counts once, every completion counts."""

    def __init__(self, n: int) -> None:
        self._n = n
        self.prompt_tokens = 0
        self.cached_tokens = 0
        self.completion_tokens = 0

    def add(self, delta: Delta) -> None:
        if delta.usage is None:
            return
        self.completion_tokens += delta.usage.completion_tokens
        if delta.index % self._n == 0:
            self.prompt_tokens += delta.usage.prompt_tokens
            self.cached_tokens += delta.usage.cached_tokens

    def object(self, reasoning_tokens: int = 0) -> UsageObject:
        return UsageObject(
            self.prompt_tokens,
            self.completion_tokens,
            self.prompt_tokens + self.completion_tokens,
            PromptTokensDetails(self.cached_tokens),
            CompletionTokensDetails(reasoning_tokens),
        )


class TopLogprobObject(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]


class TokenLogprobObject(msgspec.Struct):
    token: str
    logprob: float
    bytes: list[int]
    top_logprobs: list[TopLogprobObject]


class ChatLogprobs(msgspec.Struct):
    content: list[TokenLogprobObject]
    refusal: None = None


class CompletionLogprobs(msgspec.Struct):
    """One item a token in each list. Nothing precedes the first of a prompt, so it has no probability."""

    tokens: list[str] = []
    token_logprobs: list[float | None] = []
    top_logprobs: list[dict[str, float] | None] = []
    text_offset: list[int] = []

    def add(self, token: str, logprob: float | None, top: dict[str, float] | None, offset: int) -> None:
        self.tokens.append(token)
        self.token_logprobs.append(logprob)
        self.top_logprobs.append(top)
        self.text_offset.append(offset)


class PromptLogprob(msgspec.Struct):
    logprob: float
    rank: int
    decoded_token: str


# One item a token of the prompt, null for the first; by token id, as vLLM has it.
PromptLogprobs = list[dict[str, PromptLogprob] | None]


def clamp(logprob: float) -> float:
    """JSON has no infinities, and NaN never compares greater."""
    return logprob if logprob > MIN_LOGPROB else MIN_LOGPROB


def prompt_logprobs(entries: Sequence[TokenLogprob | None], count: int) -> PromptLogprobs:
    """Each token of the prompt with `count` alternatives, of which it may be one."""
    found: PromptLogprobs = []
    for entry in entries:
        if entry is None:
            found.append(None)
            continue
        items = {
            str(top.token_id): PromptLogprob(clamp(top.logprob), rank, top.token)
            for rank, top in enumerate(entry.top[:count], 1)
        }
        own = PromptLogprob(clamp(entry.logprob), entry.rank or 1, entry.token)
        found.append({str(entry.token_id): own, **items})
    return found


def chat_logprobs(entries: tuple[TokenLogprob, ...]) -> ChatLogprobs:
    return ChatLogprobs(
        [
            TokenLogprobObject(
                entry.token,
                clamp(entry.logprob),
                list(entry.bytes),
                [TopLogprobObject(top.token, clamp(top.logprob), list(top.bytes)) for top in entry.top],
            )
            for entry in entries
        ]
    )


class Function(msgspec.Struct):
    """A call's function; `arguments` is JSON as the model wrote it."""

    arguments: str
    name: str


class ToolCall(msgspec.Struct):
    id: str
    function: Function
    type: Literal["function"] = "function"


class FunctionDelta(msgspec.Struct):
    arguments: str
    name: str | UnsetType = UNSET


class ToolCallDelta(msgspec.Struct):
    """The first delta of a call has every member, later ones index and arguments alone."""

    index: int
    function: FunctionDelta
    id: str | UnsetType = UNSET
    type: Literal["function"] | UnsetType = UNSET


class ChatDelta(msgspec.Struct):
    role: Literal["assistant"] | UnsetType = UNSET
    content: str | UnsetType | None = UNSET
    reasoning_content: str | UnsetType = UNSET
    refusal: UnsetType | None = UNSET
    tool_calls: list[ToolCallDelta] | UnsetType = UNSET


class ChatChunkChoice(msgspec.Struct):
    index: int
    delta: ChatDelta
    logprobs: ChatLogprobs | None = None
    finish_reason: FinishReason | None = None


class ChatChunk(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion.chunk"] = "chat.completion.chunk"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChunkChoice]
    usage: UsageObject | UnsetType | None = UNSET


class ChatMessage(msgspec.Struct, kw_only=True):
    role: Literal["assistant"] = "assistant"
    content: str | None
    reasoning_content: str | UnsetType = UNSET
    refusal: None = None
    tool_calls: list[ToolCall] | UnsetType = UNSET


class ChatChoice(msgspec.Struct):
    index: int
    message: ChatMessage
    logprobs: ChatLogprobs | None
    finish_reason: FinishReason


class ChatCompletion(msgspec.Struct, kw_only=True):
    id: str
    object: Literal["chat.completion"] = "chat.completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[ChatChoice]
    usage: UsageObject
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextChoice(msgspec.Struct):
    """A choice of a text completion; in a stream only the last of a choice has a finish_reason."""

    index: int
    text: str
    logprobs: CompletionLogprobs | None = None
    finish_reason: FinishReason | None = None
    prompt_logprobs: PromptLogprobs | UnsetType = UNSET


class TextCompletion(msgspec.Struct, kw_only=True):
    """A text completion, or one chunk of its stream."""

    id: str
    object: Literal["text_completion"] = "text_completion"
    created: int
    model: str
    system_fingerprint: str
    choices: list[TextChoice]
    usage: UsageObject | UnsetType | None = UNSET
