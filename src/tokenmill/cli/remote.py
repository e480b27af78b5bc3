"""A conversation with a running server over its OpenAI-compatible API."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp
import msgspec

from tokenmill.bench.asking import ServerFailed, check, reason
from tokenmill.bench.sse import SseDecoder
from tokenmill.cli.conversation import Message
from tokenmill.core.errors import ConfigError
from tokenmill.core.request import SamplingParams


class RemoteModel:
    """One model of the server at `url` (with or without its `/v1`)."""

    def __init__(self, url: str, name: str, api_key: str | None) -> None:
        self.name = name
        self._url = base(url)
        self._headers = headers(api_key)

    async def reply(self, messages: Sequence[Message], sampling: SamplingParams) -> AsyncGenerator[str, None]:
        body: dict[str, Any] = {
            "model": self.name,
            "messages": list(messages),
            "stream": True,
            "max_tokens": sampling.max_tokens,
            "temperature": sampling.temperature,
        }
        if sampling.seed is not None:
            body["seed"] = sampling.seed
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10)
        try:
            async with (
                aiohttp.ClientSession(headers=self._headers, timeout=timeout) as session,
                session.post(f"{self._url}/v1/chat/completions", json=body) as response,
            ):
                await check(response)
                decoder = SseDecoder()
                async for received in response.content.iter_any():
                    for event in decoder.feed(received):
                        if event != b"[DONE]":
                            yield _text(event)
        except aiohttp.ClientError as error:
            raise ServerFailed(f"{self._url} does not answer: {error}") from None


def base(url: str) -> str:
    """The server's address without a trailing slash or `/v1`.

    Raises:
        ConfigError: not an http address.
    """
    if not url.startswith(("http://", "https://")):
        raise ConfigError(f"--url must start with http:// or https://, not {url!r}", param="url")
    return url.rstrip("/").removesuffix("/v1")


def headers(api_key: str | None) -> dict[str, str]:
    return {} if api_key is None else {"authorization": f"Bearer {api_key}"}


class _Delta(msgspec.Struct):
    content: str | None = None


class _Choice(msgspec.Struct):
    delta: _Delta = msgspec.field(default_factory=_Delta)


class _Chunk(msgspec.Struct):
    choices: list[_Choice] = []
    error: Any = None


def _text(event: bytes) -> str:
    try:
        chunk = msgspec.json.decode(event, type=_Chunk)
    except (msgspec.MsgspecError, RecursionError):
        raise ServerFailed("the server sent something that is no chunk of an answer") from None
    if chunk.error is not None:
        raise ServerFailed(f"the server broke off: {reason(chunk.error)}")
    return "".join(choice.delta.content or "" for choice in chunk.choices)
