"""Embeddings: forms of inputs, encodings, order, refusals, and nothing left behind."""

from __future__ import annotations

import asyncio
import base64
import json
import struct
from collections.abc import AsyncGenerator

import openai
import pytest

from support.gateways import EMBEDDINGS, RawCall, embedding, listening, listening_thread, make_gateway
from support.gateways import Gateway as Made
from support.scripted import BOS, ENGINE_MAX_LEN, HIDDEN, MODEL, speak, vector
from support.waiting import until
from tokenmill.core.delta import Delta
from tokenmill.core.errors import GenerationFailed
from tokenmill.core.events import HttpAnswered
from tokenmill.core.request import GenerateRequest
from tokenmill.gateway.embeddings import AT_ONCE


async def test_an_answer_has_every_member_clients_read(gateway: Made) -> None:
    response = await gateway.post(EMBEDDINGS, embedding(["hi", "you"]))
    assert response.json() == {
        "object": "list",
        "data": [
            {"object": "embedding", "index": 0, "embedding": vector([BOS, *b"hi"])},
            {"object": "embedding", "index": 1, "embedding": vector([BOS, *b"you"])},
        ],
        "model": MODEL,
        "usage": {"prompt_tokens": 7, "total_tokens": 7},
    }
    assert {request.pooling for request in gateway.replica.requests} == {"mean"}
    (event,) = [event for event in gateway.events if isinstance(event, HttpAnswered)]
    assert (event.route, event.status) == (EMBEDDINGS, 200)


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("ab", [(BOS, 97, 98)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
async def test_forms_of_inputs(gateway: Made, given: object, expected: list[tuple[int, ...]]) -> None:
    response = await gateway.post(EMBEDDINGS, embedding(given))
    assert [item["embedding"] for item in response.json()["data"]] == [vector(ids) for ids in expected]


async def test_base64_is_little_endian_float32(gateway: Made) -> None:
    answer = await gateway.post(EMBEDDINGS, embedding("hi", encoding_format="base64"))
    data = base64.b64decode(answer.json()["data"][0]["embedding"])
    assert list(struct.unpack(f"<{HIDDEN}f", data)) == vector([BOS, *b"hi"])


async def test_the_width_of_the_model_is_the_only_one(gateway: Made) -> None:
    assert (await gateway.post(EMBEDDINGS, embedding(dimensions=HIDDEN, user="ann"))).status_code == 200
    error = (await gateway.post(EMBEDDINGS, embedding(dimensions=HIDDEN - 1))).json()["error"]
    assert (error["code"], error["param"]) == ("unsupported_parameter", "dimensions")
    assert f"have {HIDDEN}, not {HIDDEN - 1}" in error["message"]


def test_the_official_client_reads_its_own_default_and_floats() -> None:
    inputs = [f"text {number}" for number in range(100)]
    expected = [vector([BOS, *text.encode()]) for text in inputs]
    made = make_gateway(api_key="a-long-key")
    with listening_thread(made) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="a-long-key") as client:
        default = client.embeddings.create(model=MODEL, input=inputs)
        floats = client.embeddings.create(model=MODEL, input=inputs, encoding_format="float")
        tokens = client.embeddings.create(model=MODEL, input=[list(text.encode()) for text in inputs])
    assert [item.embedding for item in default.data] == expected
    assert [item.embedding for item in floats.data] == expected
    assert [item.index for item in default.data] == list(range(100))
    assert [item.embedding for item in tokens.data] == [vector([*text.encode()]) for text in inputs]
    assert default.usage.total_tokens == default.usage.prompt_tokens == sum(len(text) + 1 for text in inputs)


async def test_a_model_that_does_not_say_how_is_a_501_with_the_way_out() -> None:
    gateway = make_gateway(pooling=None)
    response = await gateway.post(EMBEDDINGS, embedding())
    assert response.status_code == 501
    error = response.json()["error"]
    assert (error["type"], error["code"]) == ("invalid_request_error", "not_supported")
    assert "--pooling mean or --pooling last" in error["message"]
    assert response.headers["x-should-retry"] == "false"
    assert gateway.replica.requests == []


async def test_answers_come_in_the_order_of_inputs_whatever_ends_first() -> None:
    async def backwards(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for _ in range(10 - request.prompt_ids[0]):
            await asyncio.sleep(0)
        async for delta in speak(request):
            yield delta

    gateway = make_gateway(backwards)
    answer = (await gateway.post(EMBEDDINGS, embedding([[number] for number in range(10)]))).json()
    assert [item["index"] for item in answer["data"]] == list(range(10))
    assert [item["embedding"] for item in answer["data"]] == [vector([number]) for number in range(10)]


@pytest.mark.parametrize(
    "inputs",
    [
        [[1], [1] * (ENGINE_MAX_LEN + 100)],
        ["fine", ""],
        ["a" * (ENGINE_MAX_LEN - 1)] * 601,  # 601 x 500 tokens are more than 300,000
    ],
)
async def test_one_refused_input_refuses_all_before_anything_starts(gateway: Made, inputs: object) -> None:
    response = await gateway.post(EMBEDDINGS, embedding(inputs))
    assert response.status_code == 400
    assert response.json()["error"]["param"] == "input"
    assert gateway.replica.requests == []


async def test_the_most_inputs_are_embedded_a_bounded_number_at_once() -> None:
    most = 0

    async def counting(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        nonlocal most
        most = max(most, len(gateway.replica.running))
        await asyncio.sleep(0)
        async for delta in speak(request):
            yield delta

    gateway = make_gateway(counting)
    answer = (
        await gateway.post(EMBEDDINGS, embedding([[1 + number % 200] for number in range(2048)]))
    ).json()
    assert len(answer["data"]) == 2048
    assert most == AT_ONCE
    assert gateway.replica.running == {}


async def test_one_that_fails_ends_all() -> None:
    async def failing(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        if request.prompt_ids == (3,):
            raise GenerationFailed("this request failed in the engine")
        await asyncio.Event().wait()
        yield Delta()

    gateway = make_gateway(failing)
    response = await gateway.post(EMBEDDINGS, embedding([[number] for number in range(100)]))
    assert response.status_code == 500
    assert response.json()["error"]["code"] == "generation_failed"
    assert gateway.replica.running == {}
    assert len(gateway.replica.requests) <= AT_ONCE + 1  # the failure frees a place before it is heard of


async def test_a_client_that_leaves_ends_all_and_nothing_more_starts() -> None:
    async def silent(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        await asyncio.Event().wait()
        yield Delta()

    gateway = make_gateway(silent)
    body = json.dumps(embedding([[number] for number in range(100)])).encode()
    call = RawCall(gateway.app, EMBEDDINGS, body)
    running = asyncio.create_task(call.run())
    await until(lambda: len(gateway.replica.running) == AT_ONCE)
    call.hang_up.set()
    await running
    assert gateway.replica.running == {}
    assert set(gateway.replica.ended.values()) == {"aborted"}
    assert len(gateway.replica.requests) == AT_ONCE
    assert call.sent == []
    assert gateway.answered()[-1].status == 499


async def test_the_async_client_that_gives_up_frees_the_replica() -> None:
    async def silent(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        await asyncio.Event().wait()
        yield Delta()

    gateway = make_gateway(silent)
    async with (
        listening(gateway) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        asking = asyncio.create_task(client.embeddings.create(model=MODEL, input=["a", "b"]))
        await until(lambda: len(gateway.replica.running) == 2)
        asking.cancel()
        await until(lambda: not gateway.replica.running)
