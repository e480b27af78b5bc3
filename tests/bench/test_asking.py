"""Short questions to a server, and what is said when no good answer comes."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from tokenmill.bench import asking
from tokenmill.bench.asking import ServerFailed, first_model, get
from tokenmill.bench.engine_work import read_engine_work
from tokenmill.bench.mock import MockServer
from tokenmill.bench.mock_script import MockScript


@asynccontextmanager
async def answering(status: str, body: bytes) -> AsyncIterator[str]:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 %b\r\nContent-Length: %d\r\n\r\n%b" % (status.encode(), len(body), body))
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"


async def test_the_first_listed_model_is_found() -> None:
    async with MockServer(MockScript(models=("m1", "m2"))) as server:
        assert await first_model(server.url, {}) == "m1"
    with pytest.raises(ServerFailed, match="does not answer"):
        await first_model(server.url, {})


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        ("200 OK", b'{"data": []}', "serves no model"),
        ("200 OK", b"<html>", "not an OpenAI-compatible server"),
        ("200 OK", b'{"data": [{"name": 7}]}', "not an OpenAI-compatible server"),
        ("200 OK", b"[" * 99999, "not an OpenAI-compatible server"),
        ("404 Not Found", b"<html>", "answered 404: <html>"),
        ("401 No", b'{"error": "a key is needed"}', "answered 401: a key is needed"),
        ("401 No", b'{"error": {"message": "a key is needed"}}', "answered 401: a key is needed"),
        ("500 No", b'{"error": {"message": 7}}', "answered 500: no reason given"),
        ("500 No", b"[1]", r"answered 500: \[1\]"),
    ],
)
async def test_a_useless_answer_is_told(status: str, body: bytes, message: str) -> None:
    async with answering(status, body) as url:
        with pytest.raises(ServerFailed, match=message):
            await first_model(url, {})


async def test_a_server_that_says_nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(asking, "ANSWER_TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}"
        for question in (get(url, "/", {}), first_model(url, {}), read_engine_work(url)):
            with pytest.raises(ServerFailed, match="does not answer: timed out"):
                await question
