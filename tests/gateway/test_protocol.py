"""Raw bytes on a socket: request heads that are too large, too slow, or not HTTP."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator

import pytest

from support.gateways import CHAT, Gateway, chat, listening, make_gateway
from tokenmill.core.bounds import MAX_HEADER_BYTES
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.request import GenerateRequest
from tokenmill.gateway import protocol


async def talk(url: str, *pieces: bytes) -> bytes:
    """Sends the pieces and returns everything that comes back until the server closes."""
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    try:
        for piece in pieces:
            writer.write(piece)
            await writer.drain()
        return await reader.read(-1)
    except ConnectionResetError:
        return b"reset"
    finally:
        writer.close()


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1])


def error_code(answer: bytes) -> str:
    code: str = json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["code"]
    return code


CLOSE = b"connection: close\r\n"


async def test_a_head_of_usual_size_is_answered(gateway: Gateway) -> None:
    async with listening(gateway) as url:
        head = b"GET /health HTTP/1.1\r\nhost: localhost\r\n" + CLOSE + b"a: " + b"x" * 30_000 + b"\r\n\r\n"
        answer = await talk(url, head)
    assert status(answer) == 200
    assert b"server:" not in answer.lower()


@pytest.mark.parametrize(
    "head",
    [
        pytest.param(b"a: " + b"x" * MAX_HEADER_BYTES + b"\r\n\r\n", id="one header"),
        pytest.param(b"a: b\r\n" * MAX_HEADER_BYTES + b"\r\n", id="many headers"),
        pytest.param(b"a: " + b"x" * MAX_HEADER_BYTES * 20, id="a header without end"),
    ],
)
async def test_a_larger_head_is_refused(gateway: Gateway, head: bytes) -> None:
    async with listening(gateway) as url:
        pieces = [head[place : place + 4096] for place in range(0, len(head), 4096)]
        answer = await talk(url, b"GET /health HTTP/1.1\r\n", *pieces)
        assert answer == b"reset" or (status(answer), error_code(answer)) == (431, "headers_too_large")
        assert status(await talk(url, b"GET /health HTTP/1.1\r\n" + CLOSE + b"\r\n")) == 200
    assert len(gateway.answered()) == 1


async def test_a_long_path_is_part_of_the_head(gateway: Gateway) -> None:
    async with listening(gateway) as url:
        answer = await talk(url, b"GET /" + b"x" * MAX_HEADER_BYTES + b" HTTP/1.1\r\n\r\n")
    assert (status(answer), error_code(answer)) == (431, "headers_too_large")


@pytest.mark.parametrize(
    "request_line",
    [b"hello\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"GET /\xff HTTP/1.1\r\n\r\n", b"\x16\x03\x01\x02\x00\x01"],
    ids=["no HTTP", "version", "path", "TLS"],
)
async def test_what_is_not_http_gets_the_error_object(gateway: Gateway, request_line: bytes) -> None:
    async with listening(gateway) as url:
        answer = await talk(url, request_line)
    assert (status(answer), error_code(answer)) == (400, "invalid_http")
    assert b"x-request-id: req_" in answer


async def test_a_head_that_does_not_come_closes_the_connection(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.02)
    async with listening(gateway) as url:
        assert await talk(url) == b""
        assert await talk(url, b"GET /health HTTP/1.1\r\na: ") == b""


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\ncontent-length: 100000000\r\n\r\n", id="too large"
        ),
        pytest.param(
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: example.org\r\ncontent-length: 9\r\n\r\n",
            id="a stranger",
        ),
        pytest.param(b"GET /health/live HTTP/1.1\r\n\r\n", id="answered"),
    ],
)
@pytest.mark.parametrize("behind", [b"\r\n", b" "], ids=["empty lines", "spaces"])
async def test_what_trickles_in_behind_an_answer_does_not_keep_the_connection(
    gateway: Gateway, monkeypatch: pytest.MonkeyPatch, first: bytes, behind: bytes
) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.05)
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(first)
        await reader.readuntil(b"\r\n\r\n")
        ended = asyncio.create_task(reader.read(-1))
        while not ended.done():
            writer.write(behind)
            await asyncio.sleep(0.005)  # ten times as often as would be needed
        await asyncio.gather(ended, return_exceptions=True)
        writer.close()
    assert len(gateway.answered()) == 1


@pytest.mark.parametrize("kind", ["websocket", "tls/1.0"])
async def test_an_upgrade_is_declined_and_the_connection_ends(gateway: Gateway, kind: str) -> None:
    head = "GET /health/live HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade\r\nupgrade: " + kind
    async with listening(gateway) as url:
        answer = await talk(url, head.encode() + b"\r\n\r\n" + GET)
    assert answer.count(b"HTTP/1.1 ") == 1
    assert (status(answer), b"connection: close" in answer) == (200, True)


async def test_a_body_in_a_coding_that_is_not_undone_is_refused(gateway: Gateway) -> None:
    body = json.dumps(chat()).encode()
    head = b"POST %b HTTP/1.1\r\n%btransfer-encoding: gzip, chunked\r\n\r\n" % (CHAT.encode(), CLOSE)
    async with listening(gateway) as url:
        answer = await talk(url, head, b"%x\r\n%b\r\n0\r\n\r\n" % (len(body), body))
    assert (status(answer), error_code(answer)) == (415, "unsupported_media_type")


async def test_a_slow_body_is_not_a_slow_head(gateway: Gateway, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "HEAD_TIMEOUT_S", 0.02)
    body = json.dumps(chat()).encode()
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (CHAT.encode(), CLOSE, len(body)))
        await asyncio.sleep(0.06)  # three times as long as a head may take
        writer.write(body)
        assert status(await reader.read(-1)) == 200
        writer.close()


async def test_an_offer_of_http_2_is_ignored_and_the_body_is_read(gateway: Gateway) -> None:
    """What Java's own HTTP client sends unless told otherwise."""
    body = json.dumps(chat()).encode()
    head = (
        b"POST %b HTTP/1.1\r\nConnection: Upgrade, HTTP2-Settings\r\nContent-Length: %d\r\nHost: localhost\r\n"
        b"HTTP2-Settings: AAEAAEAAAAIAAAABAAMAAABkAAQBAAAAAAUAAEAA\r\nUpgrade: h2c\r\n\r\n"
    )
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        for _ in range(2):
            writer.write(head % (CHAT.encode(), len(body)) + body)
            answer = await reader.readuntil(b"\r\n\r\n")
            assert status(answer) == 200
            length = int(answer.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
            await reader.readexactly(length)
        writer.close()


async def test_pipelined_requests_are_answered_in_order(gateway: Gateway) -> None:
    one = b"GET /health/live HTTP/1.1\r\n\r\n"
    two = b"GET /nowhere HTTP/1.1\r\n" + CLOSE + b"\r\n"
    async with listening(gateway) as url:
        answer = await talk(url, one + two)
    assert answer.index(b"200 OK") < answer.index(b"404 Not Found")


async def test_large_bodies_do_not_count_as_heads(gateway: Gateway) -> None:
    body = json.dumps(chat("x" * (MAX_HEADER_BYTES * 4))).encode()
    head = b"POST %b HTTP/1.1\r\n%bcontent-length: %d\r\n\r\n" % (CHAT.encode(), CLOSE, len(body))
    async with listening(gateway) as url:
        answer = await talk(url, head, body)
    assert error_code(answer) == "context_length_exceeded"


def posted(body: dict[str, object]) -> bytes:
    data = json.dumps(body).encode()
    return b"POST %b HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b" % (
        CHAT.encode(),
        len(data),
        data,
    )


async def never(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """Never says anything, so that nothing is written that could fail."""
    await asyncio.Event().wait()
    yield Delta()


GET = b"GET /health/live HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.mark.parametrize(
    "behind",
    [
        pytest.param([GET], id="one"),
        pytest.param([GET] * (protocol.MAX_PIPELINED + 5), id="many"),
        pytest.param([posted(chat("x" * 60_000)), posted(chat("x" * 300_000))], id="large"),
    ],
)
async def test_a_client_that_leaves_is_noticed_behind_requests_that_wait(behind: list[bytes]) -> None:
    gateway = make_gateway(never)
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(posted(chat()))
        await gateway.replica.until(lambda: len(gateway.replica.running) == 1)
        for piece in behind:
            writer.write(piece)
            await writer.drain()
        writer.close()
        await gateway.replica.until(lambda: not gateway.replica.running)
    assert list(gateway.replica.ended.values()) == ["aborted"]
    assert [event.status for event in gateway.answered()] == [499]


async def test_too_many_waiting_requests_end_the_connection_after_the_answer() -> None:
    go_on = asyncio.Event()

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        await go_on.wait()
        yield Delta(text="done", finish_reason="stop", usage=Usage(1, 1))

    gateway = make_gateway(script)
    async with listening(gateway) as url:
        talking = asyncio.create_task(talk(url, posted(chat()), GET * (protocol.MAX_PIPELINED + 1)))
        await gateway.replica.until(lambda: len(gateway.replica.running) == 1)
        await asyncio.sleep(0.02)  # the rest arrives before the answer
        go_on.set()
        answer = await talking
    assert answer.count(b"HTTP/1.1 200 OK") == 1
    assert b"connection: close" in answer
    assert b"done" in answer


async def test_what_waits_behind_an_answer_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    waiting: list[int] = []
    begin = protocol.BoundedHeadProtocol.on_message_begin

    def counting(self: protocol.BoundedHeadProtocol) -> None:
        waiting.append(len(self.pipeline))
        begin(self)

    monkeypatch.setattr(protocol.BoundedHeadProtocol, "on_message_begin", counting)
    gateway = make_gateway(never)
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(posted(chat()))
        await gateway.replica.until(lambda: len(gateway.replica.running) == 1)
        for _ in range(50):
            writer.write(GET * 1000)
            await writer.drain()
        writer.close()
        await gateway.replica.until(lambda: not gateway.replica.running)
    assert max(waiting) == protocol.MAX_PIPELINED
    assert len(waiting) < 25_000, "after the bound, what comes is not even parsed"


async def test_garbage_behind_a_waiting_request_does_not_land_in_the_running_answer() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="word")
        await asyncio.Event().wait()

    gateway = make_gateway(script)
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        reader, writer = await asyncio.open_connection(host, int(port))
        writer.write(posted(chat(stream=True)))
        answer = await reader.readuntil(b"word")
        writer.write(GET + b"no HTTP at all\r\n\r\n")
        answer += await reader.read(-1)
        writer.close()
    assert answer.count(b"HTTP/1.1 ") == 1
