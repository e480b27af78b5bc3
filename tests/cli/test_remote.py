"""What a server may stream, and what is made of it."""

from __future__ import annotations

import asyncio

import pytest

from tokenmill.bench.asking import ServerFailed
from tokenmill.cli.remote import RemoteModel
from tokenmill.core.request import SamplingParams

GOOD = b'data: {"choices": [{"delta": {"content": "good"}}]}\n\n'


async def reply(stream: bytes) -> str:
    """The answer of a server that streams these bytes."""

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n" + stream)
        writer.close()

    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    async with server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        model = RemoteModel(url, "m", None)
        return "".join([part async for part in model.reply([], SamplingParams(max_tokens=4))])


async def test_the_text_of_all_chunks_is_the_answer() -> None:
    empty = b'data: {"choices": []}\n\ndata: {"choices": [{"delta": {"content": null}}]}\n\n'
    assert await reply(GOOD + empty + GOOD + b"data: [DONE]\n\n") == "goodgood"


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (b"<html>", "no chunk of an answer"),
        (b"\xff\xfe", "no chunk of an answer"),
        (b"[]", "no chunk of an answer"),
        (b'{"choices": [7]}', "no chunk of an answer"),
        (b'{"choices": [{"delta": {"content": [1]}}]}', "no chunk of an answer"),
        (b"[" * 99999, "no chunk of an answer"),
        (b'{"error": "out of memory"}', "broke off: out of memory"),
        (b'{"error": {"message": "out of memory"}}', "broke off: out of memory"),
        (b'{"error": {}}', "broke off: no reason given"),
        (b'{"error": [1]}', "broke off: no reason given"),
    ],
)
async def test_a_stream_that_goes_wrong_is_told(frame: bytes, message: str) -> None:
    with pytest.raises(ServerFailed, match=message):
        await reply(GOOD + b"data: " + frame + b"\n\n")
