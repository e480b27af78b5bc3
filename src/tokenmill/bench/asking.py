"""Short questions to a model server: one request, answered within ANSWER_TIMEOUT_S."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import aiohttp
import msgspec

from tokenmill.core.errors import TokenmillError

ANSWER_TIMEOUT_S = 10.0


class ServerFailed(TokenmillError):
    """The server could not be reached, or answered with an error."""

    code = "server_failed"


class _Model(msgspec.Struct):
    id: str


class _Models(msgspec.Struct):
    data: list[_Model]


class _Refusal(msgspec.Struct):
    error: Any = None


async def first_model(url: str, headers: Mapping[str, str]) -> str:
    """The first model the server at `url` lists.

    Raises:
        ServerFailed: no answer, an error, or no model.
    """
    page = await get(url, "/v1/models", headers)
    try:
        listed = msgspec.json.decode(page, type=_Models).data
    except (msgspec.MsgspecError, RecursionError):
        raise ServerFailed(f"{url} is not an OpenAI-compatible server") from None
    if not listed:
        raise ServerFailed(f"{url} serves no model")
    return listed[0].id


async def get(url: str, path: str, headers: Mapping[str, str]) -> bytes:
    """The body of a page.

    Raises:
        ServerFailed: no answer, or not with status 200.
    """
    timeout = aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S)
    try:
        async with (
            aiohttp.ClientSession(timeout=timeout) as session,
            session.get(url.rstrip("/") + path, headers=headers) as response,
        ):
            await check(response)
            return await response.read()
    except (aiohttp.ClientError, OSError) as error:
        raise ServerFailed(f"{url} does not answer: {str(error) or 'timed out'}") from None


async def check(response: aiohttp.ClientResponse) -> None:
    """Raises ServerFailed with the server's own words when the status is not 200."""
    if response.status == 200:
        return
    body = await response.read()
    try:
        words = reason(msgspec.json.decode(body, type=_Refusal).error)
    except (msgspec.MsgspecError, RecursionError):
        words = body[:200].decode("utf-8", "replace")
    raise ServerFailed(f"the server answered {response.status}: {words}")


def reason(error: object) -> str:
    """Servers write an error as an object with a message, or as the message alone."""
    message = error.get("message") if isinstance(error, dict) else error
    return message[:500] if isinstance(message, str) and message else "no reason given"
