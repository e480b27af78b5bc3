"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType
from msgspec.structs import replace

from tokenmill.core import bounds
from tokenmill.core.bounds import MAX_CHOICES, MAX_PROMPTS, show
from tokenmill.core.delta import Delta, TokenLogprob, Usage
from tokenmill.core.errors import ContextLengthExceeded, InvalidRequest, UnsupportedParameter
from tokenmill.core.request import SamplingParams
from tokenmill.gateway import sse
from tokenmill.gateway.body import read_json_object
from tokenmill.gateway.generation import Job, generate, make_request
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.inbox import Source
from tokenmill.gateway.openai_fields import COMPLETIONS
from tokenmill.gateway.openai_types import (
    CompletionLogprobs,
    Head,
    TextChoice,
    TextCompletion,
    UsageObject,
    UsageSum,
    clamp,
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

DEFAULT_MAX_TOKENS = 16

Prompt = str | tuple[int, ...]


async def completions(serving: Serving, exchange: Exchange) -> None:
    """Answers one text-completion request. A refused prompt refuses all before anything starts."""
    exchange.prompt_field = "prompt"
    await generate(serving, exchange, _prepare)


async def _prepare(serving: Serving, exchange: Exchange) -> Job:
    model = serving.model
    body = await read_json_object(exchange, serving.limits.body_s)
    check_model(body, model)
    COMPLETIONS.check(body)
    prompts = parse_prompts(body, model)
    echo = flag(body, "echo")
    max_tokens = _max_tokens(body, echo)
    sampling = sampling_params(
        body, vocab_size=model.vocab_size, max_tokens=max_tokens or None, logprobs=_logprobs(body, echo)
    )
    _check_choices(body, len(prompts), sampling.n)
    stream, include_usage = streaming(body)
    asked = None if output_bound(body) is None else max_tokens  # the default gives way
    ids, texts = await exchange.unless_gone(
        serving.tokenizer_thread.run(_encode, model, prompts, asked, echo)
    )

    def source(prompt_ids: Sequence[int]) -> Source:
        if max_tokens == 0:
            return _nothing(len(prompt_ids), sampling.n)
        fitting = min(max_tokens, model.max_model_len - len(prompt_ids))
        request = make_request(serving, exchange, prompt_ids, replace(sampling, max_tokens=fitting))
        return model.replica.generate(request)

    head = Head.new("cmpl-", serving.clock, model.name)
    renderer = TextRenderer(head, sampling, texts, include_usage)
    return Job([source(prompt) for prompt in ids], sampling.n, renderer, stream)


def parse_prompts(body: Body, model: ServedModel) -> list[Prompt]:
    """`prompt`: a string, a list of strings, a list of token ids, or a list of such lists."""
    if "prompt" not in body:
        raise InvalidRequest("prompt is missing", param="prompt")
    value = body["prompt"]
    if isinstance(value, str):
        return [bounds.text("prompt", value)]
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"prompt must be a string, a list of strings, token ids or lists of token ids, not {show(value)}",
            param="prompt",
        )
    if isinstance(value[0], int):
        return [_token_prompt(value, model)]
    if len(value) > MAX_PROMPTS:
        raise InvalidRequest(
            f"prompt must have at most {MAX_PROMPTS} items, not {len(value)}", param="prompt"
        )
    if isinstance(value[0], list):
        return [_token_prompt(item, model) for item in value]
    return [bounds.text("prompt", item) for item in value]


def _token_prompt(value: object, model: ServedModel) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) > model.max_model_len:
        raise ContextLengthExceeded(
            f"this model holds {model.max_model_len} tokens; the prompt has {len(value)}"
        )
    return bounds.token_ids("prompt", value, max_items=model.max_model_len)


def _max_tokens(body: Body, echo: bool) -> int:
    """0 asks for the prompt alone, so it means something only with echo."""
    name, value = output_bound(body) or ("max_tokens", DEFAULT_MAX_TOKENS)
    if value == 0 and not isinstance(value, bool) and echo:
        return 0
    return bounds.integer("max_completion_tokens", value, param=name)


def _logprobs(body: Body, echo: bool) -> int | None:
    if "logprobs" not in body or body["logprobs"] is False:
        return None
    count = bounds.integer("completions_logprobs", body["logprobs"], param="logprobs")
    if echo:
        raise UnsupportedParameter("echo together with logprobs is not supported", param="echo")
    return count


def _check_choices(body: Body, prompts: int, n: int) -> None:
    if "best_of" in body and bounds.integer("best_of", body["best_of"]) != n:
        raise UnsupportedParameter(
            f"best_of is not supported; only the value of n ({n}) is accepted", param="best_of"
        )
    if prompts * n > MAX_CHOICES:
        raise InvalidRequest(f"prompts times n must be at most {MAX_CHOICES}, not {prompts} x {n}", param="n")


def _encode(
    model: ServedModel, prompts: Sequence[Prompt], max_tokens: int | None, echo: bool
) -> tuple[list[Sequence[int]], list[str]]:
    """Token ids of each prompt, and each prompt's text if it is wanted back (else nothing).

    The first prompt that is refused ends the work on all.
    """
    ids: list[Sequence[int]] = []
    texts: list[str] = []
    for prompt in prompts:
        prompt_ids = prompt if isinstance(prompt, tuple) else encode(model, prompt, add_special=True)
        check_prompt(prompt_ids, max_tokens, model)
        ids.append(prompt_ids)
        if echo:
            texts.append(model.tokenizer.decode(prompt) if isinstance(prompt, tuple) else prompt)
    return ids, texts


async def _nothing(prompt_tokens: int, n: int) -> AsyncGenerator[Delta, None]:
    """The output of a request for no tokens."""
    for index in range(n):
        yield Delta(index=index, finish_reason="length", usage=Usage(prompt_tokens, 0))


@dataclass
class TextRenderer:
    """Writes one text completion, whole or as chunks. `echoes` is empty or has one text a prompt."""

    head: Head
    sampling: SamplingParams
    echoes: Sequence[str]
    include_usage: bool
    _begun: set[int] = field(default_factory=set)
    _offsets: dict[int, int] = field(default_factory=dict)

    def frames(self, delta: Delta) -> bytes:
        text, logprobs = self._text(delta), self._logprobs(delta)
        events = []
        if text or logprobs:
            events.append(self._event([TextChoice(delta.index, text, logprobs)]))
        if delta.finish_reason is not None:
            events.append(self._event([TextChoice(delta.index, "", None, delta.finish_reason)]))
        return b"".join(events)

    def last_frames(self, usage: UsageSum) -> bytes:
        return self._event([], usage.object()) if self.include_usage else b""

    def whole(self, deltas: Sequence[Delta], usage: UsageSum) -> TextCompletion:
        choices = [
            TextChoice(
                delta.index,
                self._text(delta),
                self._logprobs(delta, whole=True),
                delta.finish_reason or "stop",
            )
            for delta in deltas
        ]
        return self._completion(choices, usage.object())

    def _event(self, choices: list[TextChoice], usage: UsageObject | None = None) -> bytes:
        return sse.event(self._completion(choices, usage if self.include_usage else UNSET))

    def _completion(self, choices: list[TextChoice], usage: UsageObject | UnsetType | None) -> TextCompletion:
        head = self.head
        return TextCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage,
        )

    def _text(self, delta: Delta) -> str:
        """The delta's text; a choice's first begins with the echo of its prompt."""
        if not self.echoes or delta.index in self._begun:
            return delta.text
        self._begun.add(delta.index)
        return self.echoes[delta.index // self.sampling.n] + delta.text

    def _logprobs(self, delta: Delta, *, whole: bool = False) -> CompletionLogprobs | None:
        if self.sampling.logprobs is None or not (delta.logprobs or whole):
            return None
        lists = CompletionLogprobs([], [], [], [])
        for entry in delta.logprobs:
            lists.tokens.append(entry.token)
            lists.token_logprobs.append(clamp(entry.logprob))
            lists.top_logprobs.append(_alternatives(entry))
            lists.text_offset.append(self._offset(delta.index, entry.bytes))
        return lists

    def _offset(self, index: int, added: bytes) -> int:
        """The character at which a token begins: the one it continues if it is a later part of one."""
        before = self._offsets.get(index, 0)
        starts = sum(byte & 0xC0 != 0x80 for byte in added)
        self._offsets[index] = before + starts
        continues = added[:1] and added[0] & 0xC0 == 0x80
        return max(before - 1, 0) if continues else before


def _alternatives(entry: TokenLogprob) -> dict[str, float]:
    """Token texts to log-probabilities, the chosen token among them. Of equal texts the likelier counts."""
    found = {top.token: clamp(top.logprob) for top in reversed(entry.top)}
    found.setdefault(entry.token, clamp(entry.logprob))
    return found
