"""One HTTP request and its answer: request id, headers in and out, and every byte that is sent."""

from __future__ import annotations

import asyncio
import logging
import re
import uuid
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager
from typing import Any, TypeVar

import msgspec
from starlette.types import Receive, Scope, Send

from tokenmill.core.bounds import MAX_REQUEST_ID_CHARS
from tokenmill.core.clock import Clock
from tokenmill.core.errors import (
    ContextLengthExceeded,
    Draining,
    GenerationFailed,
    InternalError,
    RequestTimeout,
    TokenmillError,
)
from tokenmill.core.request import TraceContext

log = logging.getLogger(__name__)

T = TypeVar("T")

JSON = b"application/json"
Headers = Iterable[tuple[bytes, bytes]]

_VISIBLE_ASCII = re.compile(rb"[\x21-\x7e]{1,%d}" % MAX_REQUEST_ID_CHARS)
_TRACEPARENT = re.compile(r"(?!ff)[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(?:-.*)?")


class ClientGone(Exception):
    """The connection is closed: nobody is left to answer."""


class Exchange:
    """A request and its answer.

    Attributes:
        request_id: the client's own `x-request-id` if it is usable, else a new one. Not unique: clients
            may repeat theirs.
        route: the matched route's pattern; a closed set, fit for a metric label.
        status: what was answered; 499 when the client left first, 0 before any answer.
        error_code: code of the error the client saw, also inside a stream.
        first_write_s: seconds from the last byte of the request to the first of a streamed body.
        output_tokens: completion tokens of the answer.
        prompt_field: what this route's dialect calls the prompt, for errors about its length.
    """

    def __init__(
        self,
        scope: Scope,
        receive: Receive,
        send: Send,
        clock: Clock,
        on_answered: Callable[[Exchange], None],
    ) -> None:
        self._headers: list[tuple[bytes, bytes]] = scope["headers"]
        self._receive = receive
        self._send = send
        self._clock = clock
        self._on_answered = on_answered
        self._answered = False
        self.path: str = scope["path"]
        self.path_params: dict[str, str] = {}
        self.started_at = clock.monotonic()
        self.body_read_at = self.started_at
        self.route = "other"
        self.status = 0
        self.error_code = ""
        self.first_write_s: float | None = None
        self.output_tokens = 0
        self.prompt_field: str | None = None
        given = self.header(b"x-request-id")
        usable = given is not None and _VISIBLE_ASCII.fullmatch(given)
        self.request_id = given.decode() if given and usable else new_request_id()

    def header(self, name: bytes) -> bytes | None:
        """The first header of this (lower-case) name."""
        return next((value for key, value in self._headers if key == name), None)

    def headers(self, name: bytes) -> list[bytes]:
        return [value for key, value in self._headers if key == name]

    def trace(self) -> TraceContext | None:
        """The W3C trace context, None when absent or malformed."""
        value = self.header(b"traceparent")
        match = _TRACEPARENT.fullmatch(value.decode("latin-1")) if value else None
        if match is None or not int(match[1], 16) or not int(match[2], 16):
            return None
        return TraceContext(match[1], match[2], bool(int(match[3], 16) & 1))

    def seconds(self) -> float:
        """Seconds since the request began."""
        return self._clock.monotonic() - self.started_at

    async def receive_body(self) -> tuple[bytes, bool]:
        """The next piece of the body, and whether more follows. Raises ClientGone."""
        message = await self._receive()
        if message["type"] != "http.request":
            raise ClientGone
        more: bool = message.get("more_body", False)
        if not more:
            self.body_read_at = self._clock.monotonic()
        return message.get("body", b""), more

    @asynccontextmanager
    async def watching(self, on_gone: Callable[[], object]) -> AsyncIterator[None]:
        """Inside, `on_gone` is called as soon as the client closes the connection."""

        async def watch() -> None:
            while (await self._receive())["type"] != "http.disconnect":
                pass
            on_gone()

        task = asyncio.create_task(watch())
        try:
            yield
        finally:
            task.cancel()
            await asyncio.wait([task])

    async def unless_gone(self, work: Coroutine[Any, Any, T]) -> T:
        """What `work` returns; it is cancelled when the client leaves. Raises ClientGone."""
        task = asyncio.create_task(work)
        try:
            async with self.watching(task.cancel):
                await asyncio.wait([task])
        finally:
            task.cancel()
        if task.cancelled():
            raise ClientGone
        return task.result()

    async def respond(self, status: int, body: bytes, *, type_: bytes = JSON, headers: Headers = ()) -> None:
        """Sends a whole answer."""
        await self._start(
            status, [(b"content-length", b"%d" % len(body)), (b"content-type", type_), *headers]
        )
        self.answered()
        await self._write({"type": "http.response.body", "body": body, "more_body": False})

    async def respond_json(self, value: object, *, headers: Headers = ()) -> None:
        await self.respond(200, msgspec.json.encode(value), headers=headers)

    async def fail(self, error: TokenmillError, *, headers: Headers = ()) -> None:
        """Answers with the error object. After the first byte there is nothing left to say."""
        self.error_code = error.code
        if self.status == 0:
            await self.respond(error.status, error_body(error), headers=[*error_headers(error), *headers])

    async def start_stream(self, type_: bytes, headers: Headers = ()) -> None:
        await self._start(200, [(b"content-type", type_), *headers])

    async def write(self, data: bytes) -> None:
        """Sends a piece of a stream; waits while the client is slow. Raises ClientGone."""
        if self.first_write_s is None and not self.error_code:
            self.first_write_s = self._clock.monotonic() - self.body_read_at
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def write_comment(self, data: bytes) -> None:
        """Sends what is no part of the answer, and no first byte of it."""
        await self._write({"type": "http.response.body", "body": data, "more_body": True})

    async def end_stream(self) -> None:
        self.answered()
        await self._write({"type": "http.response.body", "body": b"", "more_body": False})

    def answered(self) -> None:
        """Tells, once, how it was answered: before the last byte, so that no client is ahead of it."""
        if not self._answered:
            self._answered = True
            self._on_answered(self)

    async def _start(self, status: int, headers: list[tuple[bytes, bytes]]) -> None:
        self.status = status
        headers.append((b"x-request-id", self.request_id.encode()))
        await self._write({"type": "http.response.start", "status": status, "headers": headers})

    async def _write(self, message: dict[str, object]) -> None:
        try:
            await self._send(message)
        except OSError as error:  # how ASGI servers may say it
            raise ClientGone from error


def new_request_id() -> str:
    return f"req_{uuid.uuid4().hex}"


def error_object(error: TokenmillError) -> dict[str, object]:
    """The error as clients of the OpenAI API know it: always these four keys."""
    return {
        "error": {
            "message": error.message,
            "type": error.type,
            "param": error.param,
            "code": error.code,
        }
    }


def error_body(error: TokenmillError) -> bytes:
    return msgspec.json.encode(error_object(error))


def error_headers(error: TokenmillError) -> list[tuple[bytes, bytes]]:
    """What tells official clients whether and when to try again."""
    headers = []
    if error.retry is not None:
        headers.append((b"x-should-retry", b"true" if error.retry else b"false"))
    if error.retry_after is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after))
    if error.status == 401:
        headers.append((b"www-authenticate", b"Bearer"))
    if isinstance(error, (RequestTimeout, Draining)):  # half a body is on its way; the server is leaving
        headers.append((b"connection", b"close"))
    return headers


def public_error(error: Exception, exchange: Exchange) -> TokenmillError:
    """The failure as the client may read it. What is not meant for clients is logged and replaced."""
    if isinstance(error, ContextLengthExceeded):
        error.param = exchange.prompt_field  # who counts tokens does not know the dialect's names
    if isinstance(error, TokenmillError) and (error.status != 500 or isinstance(error, GenerationFailed)):
        return error
    log.error("request %s failed unexpectedly", exchange.request_id, exc_info=error)
    return InternalError("the server had an internal error while it answered this request")
