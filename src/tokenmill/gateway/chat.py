"""POST /v1/chat/completions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET

from tokenmill.core import bounds
from tokenmill.core.delta import Delta
from tokenmill.core.errors import InvalidRequest
from tokenmill.gateway import sse
from tokenmill.gateway.body import read_json_object
from tokenmill.gateway.generation import Job, generate, make_request
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.messages import Message, parse_messages
from tokenmill.gateway.openai_fields import CHAT
from tokenmill.gateway.openai_types import (
    ChatChoice,
    ChatChunk,
    ChatChunkChoice,
    ChatCompletion,
    ChatDelta,
    ChatMessage,
    Head,
    UsageObject,
    UsageSum,
    chat_logprobs,
)
from tokenmill.gateway.sampling import (
    Body,
    check_model,
    check_prompt,
    encode,
    flag,
    output_bound,
    sampling_params,
    streaming,
)
from tokenmill.gateway.served import ServedModel, Serving


async def chat_completions(serving: Serving, exchange: Exchange) -> None:
    """Answers one chat request."""
    exchange.prompt_field = "messages"
    await generate(serving, exchange, _prepare)


async def _prepare(serving: Serving, exchange: Exchange) -> Job:
    model = serving.model
    body = await read_json_object(exchange, serving.limits.body_s)
    check_model(body, model)
    CHAT.check(body)
    messages = parse_messages(body.get("messages", []))
    sampling = sampling_params(
        body, vocab_size=model.vocab_size, max_tokens=_max_tokens(body), logprobs=_logprobs(body)
    )
    stream, include_usage = streaming(body)
    prompt_ids = await exchange.unless_gone(serving.tokenizer_thread.run(chat_prompt, model, messages))
    check_prompt(prompt_ids, sampling.max_tokens, model)
    request = make_request(serving, exchange, prompt_ids, sampling)
    head = Head.new("chatcmpl-", serving.clock, model.name)
    renderer = ChatRenderer(head, logprobs=sampling.logprobs is not None, include_usage=include_usage)
    return Job([model.replica.generate(request)], sampling.n, renderer, stream)


def chat_prompt(
    model: ServedModel, messages: Sequence[Message], *, add_generation_prompt: bool = True
) -> list[int]:
    """The token ids of a conversation. The template writes BOS itself where the model wants it."""
    if model.chat_template is None:
        raise InvalidRequest(
            f"{model.name} has no chat template; use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    text = model.chat_template.render(messages, add_generation_prompt=add_generation_prompt)
    return encode(model, text, add_special=False)


def _max_tokens(body: Body) -> int | None:
    bound = output_bound(body)
    return None if bound is None else bounds.integer("max_completion_tokens", bound[1], param=bound[0])


def _logprobs(body: Body) -> int | None:
    """Alternatives a position to report; None for no log-probabilities at all."""
    wanted = flag(body, "logprobs")
    if "top_logprobs" not in body:
        return 0 if wanted else None
    top = bounds.integer("top_logprobs", body["top_logprobs"])
    if not wanted and top:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return top if wanted else None


@dataclass
class ChatRenderer:
    """Writes one chat answer, whole or as chunks."""

    head: Head
    logprobs: bool
    include_usage: bool
    _begun: set[int] = field(default_factory=set)

    def frames(self, delta: Delta) -> bytes:
        events = []
        if delta.index not in self._begun:
            self._begun.add(delta.index)
            opening = ChatDelta(role="assistant", content="", refusal=None)
            events.append(self._event([ChatChunkChoice(delta.index, opening)]))
        logprobs = chat_logprobs(delta.logprobs) if self.logprobs and delta.logprobs else None
        if delta.text or logprobs:
            events.append(
                self._event([ChatChunkChoice(delta.index, ChatDelta(content=delta.text), logprobs)])
            )
        if delta.finish_reason is not None:
            closing = ChatChunkChoice(delta.index, ChatDelta(), finish_reason=delta.finish_reason)
            events.append(self._event([closing]))
        return b"".join(events)

    def last_frames(self, usage: UsageSum) -> bytes:
        return self._event([], usage.object()) if self.include_usage else b""

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

    def whole(self, deltas: Sequence[Delta], usage: UsageSum) -> ChatCompletion:
        choices = [
            ChatChoice(
                delta.index,
                ChatMessage(content=delta.text),
                chat_logprobs(delta.logprobs) if self.logprobs else None,
                delta.finish_reason or "stop",
            )
            for delta in deltas
        ]
        head = self.head
        return ChatCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage.object(),
        )
