"""Reading one completion request as the mock sees it."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from tokenmill.bench import mock_text
from tokenmill.bench.distribution import seeded
from tokenmill.bench.mock_script import MockScript, answer_length, with_request
from tokenmill.core.errors import ConfigError, InvalidRequest, UnsupportedParameter


class _Message(msgspec.Struct):
    role: str
    content: str | list[dict[str, object]] | None = None


class _StreamOptions(msgspec.Struct):
    include_usage: bool | None = None
    continuous_usage_stats: bool | None = None


class Body(msgspec.Struct):
    """The fields the mock acts on; all others are accepted and ignored."""

    model: str = "mock"
    prompt: str | list[int] | None = None
    messages: list[_Message] | None = None
    max_tokens: int | None = None
    max_completion_tokens: int | None = None
    stream: bool | None = None
    stream_options: _StreamOptions | None = None
    user: str | None = None
    n: int | None = None


@dataclass(frozen=True)
class Job:
    """One answer to give: everything about it is decided here, nothing later draws or looks anything up.

    Attributes:
        key: what the text depends on (`mock_text.answer_key`).
        length: tokens of the answer. finish_reason: how it ends.
        rng: for the delays; depends on the seed and the prompt alone.
    """

    chat: bool
    model: str
    stream: bool
    include_usage: bool
    continuous_usage: bool
    prompt_tokens: int
    key: bytes
    length: int
    finish_reason: str
    script: MockScript
    rng: random.Random


def read_body(raw: bytes | bytearray) -> Body:
    """Raises InvalidRequest."""
    try:
        return msgspec.json.decode(raw, type=Body)
    except msgspec.MsgspecError as error:
        raise InvalidRequest(f"the body is not usable: {error}") from None


def read_job(body: Body, *, chat: bool, script: MockScript, header: str | None) -> Job:
    """Decides the whole answer. The prompt's directive changes the script first, then the `x-mock` header.

    Raises InvalidRequest.
    """
    prompt, directive = _prompt(body, chat)
    for raw in (directive, header):
        if raw is not None:
            try:
                script = with_request(script, raw)
            except ConfigError as error:
                raise InvalidRequest(error.message, param="x-mock") from None
    if body.n not in (None, 1):
        raise UnsupportedParameter(f"n must be 1, not {body.n}", param="n")
    if body.stream_options is not None and script.refuse_usage:
        raise UnsupportedParameter("stream_options is not known", param="stream_options")
    max_tokens = body.max_completion_tokens if body.max_tokens is None else body.max_tokens
    if max_tokens is not None and max_tokens < 1:
        raise InvalidRequest(f"max_tokens must be at least 1, not {max_tokens}", param="max_tokens")
    key = mock_text.answer_key(script.seed, prompt)
    rng = seeded(key)
    length, cut = answer_length(script, max_tokens, rng)
    options = body.stream_options or _StreamOptions()
    return Job(
        chat=chat,
        model=body.model,
        stream=bool(body.stream),
        include_usage=bool(options.include_usage),
        continuous_usage=bool(options.include_usage and options.continuous_usage_stats),
        prompt_tokens=mock_text.count_tokens(prompt),
        key=key,
        length=length,
        finish_reason="length" if cut else "stop",
        script=script,
        rng=rng,
    )


def _prompt(body: Body, chat: bool) -> tuple[mock_text.Prompt, str | None]:
    """What was asked, without its directive: a chat's contents joined by line ends."""
    if chat:
        if not body.messages:
            raise InvalidRequest("messages must have at least one message", param="messages")
        return mock_text.split_directive("\n".join(_content(m.content) for m in body.messages))
    if body.prompt is None:
        raise InvalidRequest("prompt is missing", param="prompt")
    if isinstance(body.prompt, str):
        return mock_text.split_directive(body.prompt)
    return body.prompt, None


def _content(content: str | Sequence[dict[str, object]] | None) -> str:
    if content is None or isinstance(content, str):
        return content or ""
    return "\n".join(str(part["text"]) for part in content if part.get("type") == "text" and "text" in part)
