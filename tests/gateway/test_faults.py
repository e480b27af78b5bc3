"""What clients see when something fails, and what the replica sees when a client leaves."""

from __future__ import annotations

import asyncio
import json
import logging
import threading
from collections.abc import AsyncGenerator

import msgspec
import pytest

from support.gateways import (
    CHAT,
    COMPLETIONS,
    Gateway,
    RawCall,
    chat,
    chunks,
    completion,
    listening,
    make_gateway,
)
from support.scripted import ByteTokenizer, Script, speak
from support.waiting import until
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.errors import (
    ConfigError,
    EngineStopped,
    GenerationFailed,
    NotReady,
    Overloaded,
    TokenmillError,
)
from tokenmill.core.request import GenerateRequest
from tokenmill.gateway import protocol
from tokenmill.gateway.app import Limits

SENTENCE = "the server had an internal error while it answered this request"


def failing(error: Exception, *, after: int) -> Script:
    """Raises after so many deltas."""

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for number in range(after):
            yield Delta(text=f"{number} ")
            await asyncio.sleep(0)
        raise error

    return script


def silent(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """Never says anything."""
    return after_first(request, deltas=0)


async def after_first(request: GenerateRequest, deltas: int = 1) -> AsyncGenerator[Delta, None]:
    """Says one word and then nothing more."""
    for _ in range(deltas):
        yield Delta(text="word")
    await asyncio.Event().wait()


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(
    ("error", "status", "code", "retry"),
    [
        (GenerationFailed("this request failed in the engine"), 500, "generation_failed", "false"),
        (EngineStopped("the engine is stopping"), 503, "engine_stopped", None),
        (Overloaded("too many"), 503, "overloaded", None),
    ],
)
async def test_a_failure_before_the_first_byte_is_a_status(
    error: TokenmillError, status: int, code: str, retry: str | None, stream: bool
) -> None:
    gateway = make_gateway(failing(error, after=0))
    response = await gateway.post(CHAT, chat(stream=stream))
    assert response.status_code == status
    assert response.json() == {
        "error": {"message": error.message, "type": "server_error", "param": None, "code": code}
    }
    assert response.headers.get("x-should-retry") == retry
    assert response.headers.get("retry-after") == (str(error.retry_after) if error.retry_after else None)
    assert [(event.status, event.error_code) for event in gateway.answered()] == [(status, code)]


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS])
async def test_a_failure_after_the_first_byte_is_an_error_event_and_the_end(path: str) -> None:
    gateway = make_gateway(failing(GenerationFailed("this request failed in the engine"), after=2))
    found = await gateway.stream(path, chat() if path == CHAT else completion())
    assert found[-1] == {
        "error": {
            "message": "this request failed in the engine",
            "type": "server_error",
            "param": None,
            "code": "generation_failed",
        }
    }
    said = "".join(
        choice.get("text", "") or choice.get("delta", {}).get("content", "")
        for chunk in found[:-1]
        for choice in chunk["choices"]
    )
    assert said == "0 1 ", "what was generated before is delivered"
    event = gateway.answered()[-1]
    assert (event.status, event.error_code) == (200, "generation_failed")


@pytest.mark.parametrize("after", [0, 1])
@pytest.mark.parametrize(
    "error",
    [
        ValueError("secret at 0x7f001234"),
        ConfigError("flag read from a file of this machine"),
        TimeoutError("of the engine"),
    ],
)
async def test_what_is_not_meant_for_clients_is_logged_and_never_shown(
    error: Exception, after: int, caplog: pytest.LogCaptureFixture
) -> None:
    gateway = make_gateway(failing(error, after=after))
    with caplog.at_level(logging.ERROR):
        response = await gateway.post(CHAT, chat(stream=True), **{"x-request-id": "find-me"})
    if after:
        failure = chunks(response.text)[-1]["error"]
    else:
        assert response.status_code == 500
        assert response.headers["x-should-retry"] == "false"
        failure = response.json()["error"]
    assert failure == {"message": SENTENCE, "type": "server_error", "param": None, "code": "internal_error"}
    assert str(error) not in response.text
    assert "find-me" in caplog.text
    assert str(error) in caplog.text
    assert "Traceback" in caplog.text


@pytest.mark.parametrize("stream", [False, True])
async def test_a_replica_that_ends_too_early_is_an_error(stream: bool) -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(index=0, text="a", finish_reason="stop", usage=Usage(1, 1))
        yield Delta(index=1, text="b")

    response = await make_gateway(script).post(CHAT, chat(n=2, stream=stream))
    last = chunks(response.text)[-1] if stream else response.json()
    assert last["error"]["code"] == "engine_stopped"


async def test_one_failing_prompt_fails_the_answer_and_ends_the_others() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if request.prompt_ids[-1] == ord("b"):
            raise GenerationFailed("this request failed in the engine")
        await asyncio.Event().wait()
        yield Delta()

    gateway = make_gateway(script)
    response = await gateway.post(COMPLETIONS, completion(["a", "b", "c"]))
    assert response.status_code == 500
    assert sorted(gateway.replica.ended.values()) == ["aborted", "aborted", "failed"]
    assert gateway.replica.running == {}


async def test_too_many_waiting_is_refused_at_once() -> None:
    gateway = make_gateway(max_waiting=5)
    gateway.replica.waiting = 4
    assert (await gateway.post(CHAT, chat())).status_code == 200
    gateway.replica.waiting = 5
    response = await gateway.post(CHAT, chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "overloaded"
    assert response.headers["retry-after"] == "1"
    assert "x-should-retry" not in response.headers, "official clients may try again"


async def test_an_unready_replica_is_refused_with_its_reason(gateway: Gateway) -> None:
    gateway.replica.ready, gateway.replica.reason = False, "no step has finished for 31 s"
    response = await gateway.post(CHAT, chat())
    assert response.status_code == 503
    assert response.json()["error"]["code"] == NotReady.code
    assert "31 s" in response.json()["error"]["message"]


@pytest.mark.parametrize("script", [silent, after_first], ids=["before the first delta", "in mid-answer"])
@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("prompts", [1, 3])
async def test_a_client_that_leaves_ends_its_requests(script: Script, stream: bool, prompts: int) -> None:
    gateway = make_gateway(script)
    body = json.dumps(completion(["x"] * prompts, stream=stream)).encode()
    async with listening(gateway) as url:
        host, port = url.removeprefix("http://").split(":")
        _, writer = await asyncio.open_connection(host, int(port))
        writer.write(
            b"POST /v1/completions HTTP/1.1\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
            % (len(body), body)
        )
        await gateway.replica.until(lambda: len(gateway.replica.running) == prompts)
        writer.close()
        await gateway.replica.until(lambda: not gateway.replica.running)
    assert list(gateway.replica.ended.values()) == ["aborted"] * prompts
    assert [(event.status, event.error_code) for event in gateway.answered()] == [(499, "client_gone")]


async def test_a_client_that_leaves_while_its_prompt_is_tokenized_starts_nothing_that_stays() -> None:
    loop = asyncio.get_running_loop()
    tokenizing, go_on = asyncio.Event(), threading.Event()

    class Slow(ByteTokenizer):
        def encode(self, text: str, *, add_special: bool) -> list[int]:
            loop.call_soon_threadsafe(tokenizing.set)
            go_on.wait(20)
            return super().encode(text, add_special=add_special)

    gateway = make_gateway(silent, tokenizer=Slow())
    call = RawCall(gateway.app, CHAT, json.dumps(chat()).encode())
    running = asyncio.create_task(call.run())
    await tokenizing.wait()
    call.hang_up.set()
    await running  # it does not wait for the tokenizer
    go_on.set()
    assert gateway.replica.running == {}
    assert call.sent == []
    assert gateway.answered()[-1].status == 499


async def test_a_client_that_leaves_while_it_sends_is_not_answered(gateway: Gateway) -> None:
    async def receive() -> dict[str, object]:
        return messages.pop(0)

    messages: list[dict[str, object]] = [
        {"type": "http.request", "body": b'{"model"', "more_body": True},
        {"type": "http.disconnect"},
    ]
    call = RawCall(gateway.app, CHAT, b"")
    call._receive = receive  # type: ignore[method-assign]
    await call.run()
    assert call.sent == []
    assert gateway.answered()[-1].status == 499


async def test_silence_is_broken_by_comments() -> None:
    go_on = asyncio.Event()

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="a")
        await go_on.wait()
        yield Delta(text="b", finish_reason="stop", usage=Usage(1, 2))

    gateway = make_gateway(script, limits=Limits(keepalive_s=0.001))
    call = RawCall(gateway.app, CHAT, json.dumps(chat(stream=True)).encode())
    running = asyncio.create_task(call.run())
    await until(lambda: sum(message.get("body") == b": keep-alive\n\n" for message in call.sent) >= 3)
    go_on.set()
    await running
    text = b"".join(message.get("body", b"") for message in call.sent).decode()
    assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks(text)] == ["", "a", "b", None]


@pytest.mark.parametrize("failing", [False, True])
async def test_silence_before_the_first_word_is_broken_too(failing: bool) -> None:
    go_on = asyncio.Event()

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        await go_on.wait()
        if failing:
            raise GenerationFailed("this request failed in the engine")
        yield Delta(text="a", finish_reason="stop", usage=Usage(1, 1))

    gateway = make_gateway(script, limits=Limits(keepalive_s=0.001))
    call = RawCall(gateway.app, CHAT, json.dumps(chat(stream=True)).encode())
    running = asyncio.create_task(call.run())
    await until(lambda: sum(message.get("body") == b": keep-alive\n\n" for message in call.sent) >= 2)
    assert call.sent[0]["status"] == 200
    go_on.set()
    await running
    text = b"".join(message.get("body", b"") for message in call.sent).decode()
    event = gateway.answered()[-1]
    if failing:
        assert [chunk["error"]["code"] for chunk in chunks(text)] == ["generation_failed"]
        assert event.first_byte_s is None, "neither a comment nor an error is a first token"
    else:
        assert [chunk["choices"][0]["delta"].get("content") for chunk in chunks(text)] == ["", "a", None]
        assert event.first_byte_s is not None


DELTAS, PIECE = 4000, "x" * 1000


async def much(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """Four megabytes as fast as possible."""
    for number in range(DELTAS):
        last = number == DELTAS - 1
        yield Delta(
            text=PIECE,
            finish_reason="stop" if last else None,
            usage=Usage(1, DELTAS) if last else None,
        )
        if number % 16 == 0:
            await asyncio.sleep(0)


async def open_stream(url: str) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A streaming chat request whose answer is not read: the reader holds at most a few KiB."""
    body = json.dumps(chat(stream=True)).encode()
    host, port = url.removeprefix("http://").split(":")
    reader, writer = await asyncio.open_connection(host, int(port), limit=1024)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.0\r\nhost: localhost\r\ncontent-length: %d\r\n\r\n%b"
        % (len(body), body)
    )
    return reader, writer


async def test_a_slow_reader_gets_merged_chunks_and_the_whole_text() -> None:
    gateway = make_gateway(much)
    async with listening(gateway) as url:
        reader, writer = await open_stream(url)
        await gateway.replica.until(lambda: bool(gateway.replica.ended))  # all was made, little was sent
        raw = await reader.read(-1)
        writer.close()
    events = [line.removeprefix(b"data: ") for line in raw.split(b"\n") if line.startswith(b"data: {")]
    found = [msgspec.json.decode(event)["choices"][0] for event in events]
    assert "".join(choice["delta"].get("content", "") for choice in found) == PIECE * DELTAS
    assert found[-1]["finish_reason"] == "stop"
    assert len(found) < DELTAS / 2, "what waited was sent as one"
    assert b"data: [DONE]\n\n" in raw[-40:]


async def test_a_reader_that_stalls_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    async def endless(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        while True:
            yield Delta(text=PIECE)
            await asyncio.sleep(0)

    monkeypatch.setattr(protocol, "READER_STALL_S", 0.02)
    gateway = make_gateway(endless)
    async with listening(gateway) as url:
        _, writer = await open_stream(url)
        await gateway.replica.until(lambda: bool(gateway.replica.ended))
        writer.close()
    assert list(gateway.replica.ended.values()) == ["aborted"]
    assert gateway.answered()[-1].status == 499


async def test_other_streams_go_on_beside_a_stalled_one() -> None:
    gateway = make_gateway(much)
    async with listening(gateway) as url:
        _, writer = await open_stream(url)
        await gateway.replica.until(lambda: bool(gateway.replica.ended))
        gateway.replica.script = speak
        assert (await gateway.post(CHAT, chat())).status_code == 200
        writer.transport.abort()
