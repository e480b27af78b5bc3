"""A conversation with a running server over its OpenAI-compatible API."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import aiohttp

from tokenmill.bench.sse import SseDecoder
from tokenmill.cli.conversation import Message
from tokenmill.core.errors import ConfigError, TokenmillError
from tokenmill.core.request import SamplingParams


class ServerFailed(TokenmillError):
    """The server could not be reached, or answered with an error."""

    code = "server_failed"


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
                await _check(response)
                decoder = SseDecoder()
                async for received in response.content.iter_any():
                    for event in decoder.feed(received):
                        if event != b"[DONE]":
                            yield _text(json.loads(event))
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


async def first_model(url: str, api_key: str | None) -> str:
    """The name of the first model the server lists.

    Raises:
        ServerFailed: no answer, an error, or no model.
    """
    address = base(url)
    try:
        async with (
            aiohttp.ClientSession(headers=headers(api_key)) as session,
            session.get(f"{address}/v1/models", timeout=aiohttp.ClientTimeout(total=10)) as response,
        ):
            await _check(response)
            listed = (await response.json())["data"]
    except (aiohttp.ClientError, TimeoutError) as error:
        raise ServerFailed(f"{address} does not answer: {error or 'timed out'}") from None
    except (ValueError, KeyError, TypeError):
        raise ServerFailed(f"{address} is not an OpenAI-compatible server") from None
    if not listed:
        raise ServerFailed(f"{address} serves no model")
    return str(listed[0]["id"])


async def _check(response: aiohttp.ClientResponse) -> None:
    if response.status == 200:
        return
    text = await response.text()
    try:
        text = json.loads(text)["error"]["message"]
    except (ValueError, KeyError, TypeError):
        text = text[:200]
    raise ServerFailed(f"the server answered {response.status}: {text}")


def _text(chunk: dict[str, Any]) -> str:
    if "error" in chunk:
        raise ServerFailed(f"the server broke off: {chunk['error'].get('message', 'no reason given')}")
    return "".join(choice.get("delta", {}).get("content") or "" for choice in chunk.get("choices", ()))
