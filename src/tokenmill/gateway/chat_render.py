"""Writes one chat answer, whole or as chunks."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from tokenmill.core.delta import Delta
from tokenmill.gateway import sse
from tokenmill.gateway.openai_types import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatLogprobs,
    ChatMessage,
    Function,
    FunctionDelta,
    Head,
    ToolCall,
    ToolCallDelta,
    UsageObject,
    UsageSum,
    chat_logprobs,
    prompt_logprobs,
)
from tokenmill.gateway.reading import ChoiceReader, Part, Thought
from tokenmill.gateway.tools.parser import Arguments, CallStarted, Content


@dataclass
class ChatRenderer:
    """Renders deltas as the API has them. Every choice is read by a reader of its own.

    Log-probabilities cover every token the model wrote, those of calls and thoughts included; in a stream
    they travel with the first chunk of their delta.

    Attributes:
        calling: the request has tools; content is null until there is some.
        prompt_logprobs: alternatives a token of the prompt, None for nothing; a stream has no place for them.
    """

    head: Head
    logprobs: bool
    include_usage: bool
    make_reader: Callable[[], ChoiceReader]
    calling: bool = False
    prompt_logprobs: int | None = None
    _readers: dict[int, ChoiceReader] = field(default_factory=dict)

    def frames(self, delta: Delta) -> bytes:
        events = []
        if delta.index not in self._readers:
            opening = ChatDelta(role="assistant", content=None if self.calling else "", refusal=None)
            events.append(self._event([ChatChunkChoice(delta.index, opening)]))
        reader = self._reader(delta.index)
        chunks = [_chat_delta(part) for part in reader.read(delta)]
        logprobs = chat_logprobs(delta.logprobs) if self.logprobs and delta.logprobs else None
        if logprobs and not chunks:
            chunks = [ChatDelta(content=UNSET if self.calling else "")]
        for chunk in chunks:
            events.append(self._event([ChatChunkChoice(delta.index, chunk, logprobs)]))
            logprobs = None
        if delta.finish_reason is not None:
            reason = reader.finish_reason(delta.finish_reason)
            events.append(self._event([ChatChunkChoice(delta.index, ChatDelta(), finish_reason=reason)]))
        return b"".join(events)

    def last_frames(self, usage: UsageSum) -> bytes:
        return self._event([], self._usage(usage)) if self.include_usage else b""

    def whole(self, deltas: Sequence[Delta], usage: UsageSum) -> ChatCompletion:
        choices = [self._choice(delta) for delta in deltas]
        head, count = self.head, self.prompt_logprobs
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=self._usage(usage),
            prompt_logprobs=UNSET if count is None else prompt_logprobs(deltas[0].prompt_logprobs, count),
        )

    def _choice(self, delta: Delta) -> ChatChoice:
        reader = self._reader(delta.index)
        logprobs: ChatLogprobs | None = chat_logprobs(delta.logprobs) if self.logprobs else None
        message = _message(reader.read(delta))
        return ChatChoice(delta.index, message, logprobs, reader.finish_reason(delta.finish_reason or "stop"))

    def _reader(self, index: int) -> ChoiceReader:
        if index not in self._readers:
            self._readers[index] = self.make_reader()
        return self._readers[index]

    def _usage(self, usage: UsageSum) -> UsageObject:
        return usage.object(sum(reader.reasoning_tokens for reader in self._readers.values()))

    def _event(self, choices: list[ChatChunkChoice], usage: UsageObject | None = None) -> bytes:
        head = self.head
        return sse.event(
            ChatChunk(
                id=head.id,
                created=head.created,
                model=head.model,
                system_fingerprint=head.system_fingerprint,
                choices=choices,
                usage=usage if self.include_usage else UNSET,
            )
        )


def _chat_delta(part: Part) -> ChatDelta:
    match part:
        case Content(text):
            return ChatDelta(content=text)
        case Thought(text):
            return ChatDelta(reasoning_content=text)
        case CallStarted(index, name):
            call = ToolCallDelta(index, FunctionDelta("", name), _call_id(), "function")
            return ChatDelta(tool_calls=[call])
        case Arguments(index, text):
            return ChatDelta(tool_calls=[ToolCallDelta(index, FunctionDelta(text))])


def _message(parts: Sequence[Part]) -> ChatMessage:
    content, thoughts, calls = list[str](), list[str](), list[ToolCall]()
    for part in parts:
        match part:
            case Content(text):
                content.append(text)
            case Thought(text):
                thoughts.append(text)
            case CallStarted(_, name):
                calls.append(ToolCall(_call_id(), Function("", name)))
            case Arguments(index, text):
                calls[index].function.arguments += text
    return ChatMessage(
        content="".join(content) if content or not calls else None,
        reasoning_content="".join(thoughts) if thoughts else UNSET,
        tool_calls=calls if calls else UNSET,
    )


def _call_id() -> str:
    return "call_" + uuid.uuid4().hex[:24]
