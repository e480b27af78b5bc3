"""uvicorn's HTTP/1.1 protocol with bounds on request heads, and refusals as the API's error object."""

from __future__ import annotations

import asyncio
import re

from uvicorn._types import ASGI3Application
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from tokenmill.core.bounds import MAX_HEADER_BYTES
from tokenmill.core.errors import HeadersTooLarge, InvalidRequest
from tokenmill.gateway.http import error_body, new_request_id

HEAD_TIMEOUT_S = 30.0
# A reader that leaves this server's 64 KiB of output untouched for so long is given up.
READER_STALL_S = 120.0
# Requests that may wait behind the one that is answered; most clients never send a second.
MAX_PIPELINED = 16
# Java's HTTP client offers HTTP/2 with every first request. A server may ignore the offer, but the parser
# would drop the body with it; so the offer gets another name, of the same length. No JSON has such a line.
_OFFER = re.compile(rb"\r\nupgrade:(?=[ \t]*h2c)", re.IGNORECASE)


class BoundedHeadProtocol(HttpToolsProtocol):
    """Bounds what one connection can hold up.

    Heads over `MAX_HEADER_BYTES` are refused; a connection that does not finish a head in time, or does
    not read its answer, is closed. At any time a connection has a request that runs or a timer that closes
    it. A client that leaves is noticed whatever it sent before: reading never stops while an answer runs, so
    requests that wait behind it are few and small, or not heard.
    """

    _head_bytes = 0  # of what the parser has handed out of this request's head
    _held_bytes = 0  # fed since the parser last handed out anything: a header may be growing in it
    _head_timer: asyncio.TimerHandle | None = None
    _stall_timer: asyncio.TimerHandle | None = None
    _running: RequestResponseCycle | None = None  # `cycle` is the newest, which may wait behind this one
    _deaf = False  # the connection ends with the answer that runs; what else arrives is dropped

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn
        super().connection_made(transport)
        self._expect_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._head_arrived()
        if self._running is not None and not self._running.response_complete:
            self._running.disconnected = True
            self._running.message_event.set()
        super().connection_lost(exc)
        if self._stall_timer is not None:
            self._stall_timer.cancel()

    def data_received(self, data: bytes) -> None:
        if self._deaf:
            return
        self._held_bytes += len(data)
        super().data_received(_OFFER.sub(b"\r\nignored:", data) if b"h2c" in data else data)
        self._keep_a_timer()
        if self._held_bytes > MAX_HEADER_BYTES and not self.transport.is_closing():
            self._head_bytes += self._held_bytes
            self.send_400_response("")

    def on_message_begin(self) -> None:
        super().on_message_begin()
        self._head_bytes = self._held_bytes = 0
        self._expect_head()

    def on_url(self, url: bytes) -> None:
        self._count(len(url))
        super().on_url(url)

    def on_header(self, name: bytes, value: bytes) -> None:
        self._count(len(name) + len(value))
        super().on_header(name, value)

    def on_headers_complete(self) -> None:
        self._head_arrived()
        super().on_headers_complete()
        if self.parser.should_upgrade():  # what follows is no HTTP to the parser
            self.cycle.keep_alive = False
        self._bound_waiting()

    def on_body(self, body: bytes) -> None:
        self._held_bytes = 0
        super().on_body(body)
        self._bound_waiting()

    def _start_asgi_task(self, cycle: RequestResponseCycle, app: ASGI3Application) -> None:
        self._running = cycle
        super()._start_asgi_task(cycle, app)

    def _bound_waiting(self) -> None:
        """uvicorn stops reading while a request waits, and so would not see its client leave."""
        if not self.pipeline or self._running is None:
            return
        if len(self.pipeline) > MAX_PIPELINED or len(self.cycle.body) > HIGH_WATER_LIMIT:
            self._deaf = True
            self._running.keep_alive = False
            self.pipeline.clear()
        self.flow.resume_reading()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._stall_timer = self.loop.call_later(READER_STALL_S, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self._stall_timer is not None:
            self._stall_timer.cancel()
            self._stall_timer = None

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing: uvicorn would advise, in the log and for every such request, to install something."""

    def send_400_response(self, msg: str) -> None:
        """What uvicorn calls for anything that is not HTTP; here also for heads that are too large."""
        running = self._running
        if running is None or not running.response_started or running.response_complete:
            self.transport.write(self._refusal())  # else it would land inside another request's answer
        self.transport.close()

    def _refusal(self) -> bytes:
        if self._head_bytes > MAX_HEADER_BYTES:
            error = HeadersTooLarge(f"the request's headers have more than {MAX_HEADER_BYTES} bytes")
            body, status = error_body(error), error.status
        else:
            body = error_body(InvalidRequest("the request is not valid HTTP", code="invalid_http"))
            status = 400
        return b"".join(
            (
                STATUS_LINE[status],
                b"content-type: application/json\r\ncontent-length: %d\r\n" % len(body),
                b"x-request-id: %s\r\nconnection: close\r\n\r\n" % new_request_id().encode(),
                body,
            )
        )

    def _count(self, size: int) -> None:
        self._held_bytes = 0
        self._head_bytes += size
        if self._head_bytes > MAX_HEADER_BYTES:
            raise ValueError("request head too large")  # the parser stops and uvicorn sends the refusal

    def _expect_head(self) -> None:
        self._head_arrived()
        self._head_timer = self.loop.call_later(HEAD_TIMEOUT_S, self.transport.close)

    def _keep_a_timer(self) -> None:
        """Data stops uvicorn's timer for idle connections, also data that begins no request: the rest of a
        body that was refused, or empty lines. From then on the next head is expected."""
        idle = self.cycle is None or self.cycle.response_complete
        if idle and self._head_timer is None and not self.transport.is_closing():
            self._expect_head()

    def _head_arrived(self) -> None:
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None
