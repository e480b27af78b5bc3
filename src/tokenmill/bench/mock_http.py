"""The mock's HTTP/1.1, on a bare asyncio protocol: cheap, and it can misbehave exactly."""

from __future__ import annotations

import asyncio
import socket
import struct
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import cast

import httptools

from tokenmill.core.bounds import MAX_BODY_BYTES

MAX_PIPELINED = 16
_LINGER_ZERO = struct.pack("ii", 1, 0)

Headers = tuple[tuple[str, str], ...]


@dataclass
class HttpRequest:
    """One request. Header names are lower case."""

    method: str = ""
    path: str = ""
    headers: dict[str, str] = field(default_factory=dict)
    body: bytearray = field(default_factory=bytearray)
    keep_alive: bool = True


class Connection(asyncio.Protocol):
    """Runs the handler for one request after the other.

    When the client leaves, `gone` turns true and the handler's task is cancelled before it can run again:
    nothing is counted as delivered that was written after the mock knew.
    """

    def __init__(
        self,
        handler: Callable[[HttpRequest, Connection], Awaitable[None]],
        *,
        closed: Callable[[Connection], None],
    ) -> None:
        self.gone = False
        self._handler = handler
        self._closed = closed
        self._parser = httptools.HttpRequestParser(self)
        self._arriving = HttpRequest()
        self._pending: deque[HttpRequest] = deque()
        self._task: asyncio.Task[None] | None = None
        self._writable = asyncio.Event()
        self._writable.set()
        self._keep_alive = True
        self._head_sent = False
        self._unsent: list[bytes] = []

    # What asyncio calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError:
            self._transport.abort()

    def eof_received(self) -> None:
        """A client that closed its half has left: HTTP clients that still want an answer do not do that."""
        self._leave()

    def connection_lost(self, exc: Exception | None) -> None:
        self._leave()
        self._closed(self)

    def pause_writing(self) -> None:
        self._writable.clear()

    def resume_writing(self) -> None:
        self._writable.set()

    def _leave(self) -> None:
        self.gone = True
        if self._task is not None:
            self._task.cancel()

    # What httptools calls.

    def on_message_begin(self) -> None:
        self._arriving = HttpRequest()

    def on_url(self, url: bytes) -> None:
        self._arriving.path += url.decode("latin-1")

    def on_header(self, name: bytes, value: bytes) -> None:
        self._arriving.headers[name.decode("latin-1").lower()] = value.decode("latin-1")

    def on_body(self, body: bytes) -> None:
        self._arriving.body += body
        if len(self._arriving.body) > MAX_BODY_BYTES:
            self._transport.abort()

    def on_message_complete(self) -> None:
        self._arriving.method = self._parser.get_method().decode("latin-1")
        self._arriving.keep_alive = self._parser.should_keep_alive()
        self._pending.append(self._arriving)
        if len(self._pending) > MAX_PIPELINED:
            self._transport.abort()
        elif self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._serve())

    async def _serve(self) -> None:
        try:
            while self._pending and not self.gone:
                request = self._pending.popleft()
                self._keep_alive, self._head_sent = request.keep_alive, False
                await self._handler(request, self)
                self.flush()
                if not self._keep_alive:
                    self._transport.close()
                    return
            self._task = None
        except asyncio.CancelledError:
            self._transport.abort()
        except Exception:
            self._transport.abort()
            raise

    async def stop(self) -> None:
        """Cuts the connection and waits for the handler to have ended."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        self._transport.abort()

    # What handlers call.

    def send(self, status: int, body: bytes, headers: Headers = ()) -> None:
        """A whole response with a JSON body."""
        if self._head_sent:
            raise RuntimeError("the response has already begun")
        head = self._head(status, (("content-type", "application/json"), *headers))
        self._transport.write(b"%bcontent-length: %d\r\n\r\n%b" % (head, len(body), body))

    def begin_stream(self, headers: Headers = ()) -> None:
        """Status 200 and the headers of an event stream."""
        head = self._head(
            200, (("content-type", "text/event-stream"), ("cache-control", "no-cache"), *headers)
        )
        self._unsent.append(head + b"transfer-encoding: chunked\r\n\r\n")

    def write(self, parts: Sequence[bytes]) -> None:
        """The parts as one chunk of the stream's body; nothing where they are empty, as that would end it."""
        data = b"".join(parts)
        if data:
            self._unsent.append(b"%x\r\n%b\r\n" % (len(data), data))

    def end_stream(self) -> None:
        self._unsent.append(b"0\r\n\r\n")

    def flush(self) -> None:
        """Hands what was written to the socket, in one call: system calls are most of the mock's cost."""
        if self._unsent:
            self._transport.write(b"".join(self._unsent))
            self._unsent.clear()

    async def drain(self) -> None:
        """Flushes, and waits while the client reads too slowly."""
        self.flush()
        if not self._writable.is_set():
            await self._writable.wait()

    def reset(self) -> None:
        """Ends the connection with a TCP RST. Bytes not yet acknowledged are lost."""
        raw = self._transport.get_extra_info("socket")
        raw.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_ZERO)
        self._keep_alive = False
        self._transport.abort()

    def _head(self, status: int, headers: Headers) -> bytes:
        self._head_sent = True
        lines = [f"HTTP/1.1 {status} {_phrase(status)}"]
        lines += (f"{name}: {value}" for name, value in headers)
        if not self._keep_alive:
            lines.append("connection: close")
        return ("\r\n".join(lines) + "\r\n").encode("latin-1")


def _phrase(status: int) -> str:
    try:
        return HTTPStatus(status).phrase
    except ValueError:
        return "Unknown"
