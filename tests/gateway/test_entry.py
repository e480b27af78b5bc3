"""What waits between a request's head and the replica: counted, bounded, and dropped with its client."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator

import pytest

from support.gateways import CHAT, COMPLETIONS, Gateway, RawCall, chat, completion, make_gateway
from support.scripted import ByteTokenizer
from support.waiting import until


class Held(ByteTokenizer):
    """Encodes and decodes only while it is let."""

    def __init__(self) -> None:
        self.begun: list[str] = []
        self.let = threading.Event()

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        self.begun.append(text)
        if not self.let.wait(20):
            raise TimeoutError
        return super().encode(text, add_special=add_special)


@pytest.fixture
def held() -> Iterator[tuple[Gateway, Held]]:
    tokenizer = Held()
    made = make_gateway(tokenizer=tokenizer, max_waiting=3)
    yield made, tokenizer
    tokenizer.let.set()
    made.app.close()


PATHS = {
    CHAT: chat(),
    COMPLETIONS: completion(),
    "/tokenize": {"prompt": "x"},
    "/detokenize": {"tokens": [104]},
}


def call(gateway: Gateway, path: str) -> tuple[RawCall, asyncio.Task[None]]:
    made = RawCall(gateway.app, path, json.dumps(PATHS[path]).encode())
    return made, asyncio.create_task(made.run())


@pytest.mark.parametrize("path", PATHS)
async def test_requests_at_the_tokenizer_wait_like_those_in_the_replica(
    held: tuple[Gateway, Held], path: str
) -> None:
    gateway, tokenizer = held
    gateway.replica.waiting = 1
    _, first = call(gateway, "/tokenize")
    await until(lambda: len(tokenizer.begun) == 1)
    _, second = call(gateway, path)
    refused, third = call(gateway, path)
    await third
    assert refused.sent[0]["status"] == 503
    assert (await gateway.get("/health/live")).status_code == 200
    tokenizer.let.set()
    await asyncio.gather(first, second)
    assert (await gateway.post(path, PATHS[path])).status_code == 200, "there is room again"


async def test_bodies_that_are_read_count() -> None:
    limited = make_gateway(max_waiting=1)
    slow = RawCall(limited.app, CHAT, b"")
    slow._body_given = True  # nothing comes
    reading = asyncio.create_task(slow.run())
    await asyncio.sleep(0)
    assert (await limited.post(CHAT, chat())).json()["error"]["code"] == "overloaded"
    slow.hang_up.set()
    await reading
    assert (await limited.post(CHAT, chat())).status_code == 200


@pytest.mark.parametrize("path", [CHAT, COMPLETIONS, "/tokenize"])
async def test_a_client_that_leaves_takes_its_text_out_of_the_queue(
    held: tuple[Gateway, Held], path: str
) -> None:
    gateway, tokenizer = held
    _, first = call(gateway, "/tokenize")
    await until(lambda: len(tokenizer.begun) == 1)
    leaving, second = call(gateway, path)
    leaving.hang_up.set()
    await second  # while the tokenizer is still held
    assert gateway.answered()[-1].status == 499
    tokenizer.let.set()
    await first
    assert tokenizer.begun == ["x"]
