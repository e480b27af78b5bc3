"""The official client against a real socket: sync, async, and its streaming helpers."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import asynccontextmanager

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from support.gateways import Gateway, listening, listening_thread, make_gateway
from support.scripted import MODEL, Script, speak, words
from tokenmill.core.delta import Delta
from tokenmill.core.errors import GenerationFailed
from tokenmill.core.request import GenerateRequest

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Gateway, openai.OpenAI]]:
    made = make_gateway(api_key="a-long-key")
    with listening_thread(made) as url, openai.OpenAI(base_url=f"{url}/v1", api_key="a-long-key") as client:
        yield made, client


@asynccontextmanager
async def async_client(script: Script = speak) -> AsyncIterator[tuple[Gateway, openai.AsyncOpenAI]]:
    made = make_gateway(script)
    async with (
        listening(made) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=2) as client,
    ):
        yield made, client


def test_chat(served: tuple[Gateway, openai.OpenAI]) -> None:
    gateway, client = served
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, top_logprobs=1)
    choice = answer.choices[0]
    assert choice.message.content == "".join(words(gateway.replica.requests[-1], 0))
    assert choice.logprobs is not None
    assert choice.logprobs.content is not None
    assert len(choice.logprobs.content) == 6
    assert answer.usage is not None
    assert answer.usage.total_tokens == 28
    assert answer._request_id is not None


def test_completions_that_score_their_prompt(served: tuple[Gateway, openai.OpenAI]) -> None:
    _, client = served
    answer = client.completions.create(
        model=MODEL, prompt=[104, 105], echo=True, logprobs=2, max_tokens=1, n=2, best_of=3
    )
    assert [choice.index for choice in answer.choices] == [0, 1]
    for choice in answer.choices:
        assert choice.text.startswith("hi ")
        assert choice.logprobs is not None
        assert choice.logprobs.token_logprobs == [None, -1.0, -0.5]
        assert choice.logprobs.text_offset == [0, 1, 2]
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 3
    stream = client.completions.create(
        model=MODEL, prompt=[104, 105], echo=True, logprobs=0, max_tokens=0, stream=True
    )
    chunks = [chunk.choices[0] for chunk in stream]
    assert "".join(choice.text for choice in chunks) == "hi"
    assert chunks[0].logprobs is not None
    assert chunks[0].logprobs.tokens == ["h", "i"]


def test_streaming_chat(served: tuple[Gateway, openai.OpenAI]) -> None:
    gateway, client = served
    stream = client.chat.completions.create(
        model=MODEL, messages=MESSAGES, stream=True, stream_options={"include_usage": True}
    )
    found = list(stream)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in found if chunk.choices)
    assert text == "".join(words(gateway.replica.requests[-1], 0))
    assert found[-1].usage is not None
    assert found[-1].usage.completion_tokens == 6


def test_the_stream_helper_builds_the_same_answer(served: tuple[Gateway, openai.OpenAI]) -> None:
    _, client = served
    whole = client.chat.completions.create(model=MODEL, messages=MESSAGES, logprobs=True, n=2, seed=5)
    with client.chat.completions.stream(
        model=MODEL,
        messages=MESSAGES,
        logprobs=True,
        n=2,
        seed=5,
        stream_options={"include_usage": True},
    ) as stream:
        deltas = "".join(event.delta for event in stream if event.type == "content.delta")
        built = stream.get_final_completion()
    assert [choice.message.content for choice in built.choices] == [
        choice.message.content for choice in whole.choices
    ]
    assert [choice.finish_reason for choice in built.choices] == ["stop", "stop"]
    assert built.usage == whole.usage
    assert len(deltas) == sum(len(choice.message.content or "") for choice in whole.choices)


def test_completions(served: tuple[Gateway, openai.OpenAI]) -> None:
    _, client = served
    whole = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, logprobs=2)
    stream = client.completions.create(model=MODEL, prompt=["a", "b"], n=2, logprobs=2, stream=True)
    texts = [""] * 4
    for chunk in stream:
        for choice in chunk.choices:
            texts[choice.index] += choice.text
    assert texts == [choice.text for choice in whole.choices]
    assert whole.choices[0].logprobs is not None
    assert whole.choices[0].logprobs.top_logprobs is not None


def test_models(served: tuple[Gateway, openai.OpenAI]) -> None:
    _, client = served
    assert [model.id for model in client.models.list()] == [MODEL]
    assert client.models.retrieve(MODEL).owned_by == "tokenmill"
    with pytest.raises(openai.NotFoundError) as missing:
        client.models.retrieve("other/one")
    assert missing.value.code == "model_not_found"


def test_extras_travel_in_extra_body(served: tuple[Gateway, openai.OpenAI]) -> None:
    gateway, client = served
    client.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"top_k": 3, "ignore_eos": True, "min_p": 0.2}
    )
    sampling = gateway.replica.requests[-1].sampling
    assert (sampling.top_k, sampling.ignore_eos, sampling.min_p) == (3, True, 0.2)


def test_errors_have_their_classes_and_are_not_tried_again(served: tuple[Gateway, openai.OpenAI]) -> None:
    gateway, client = served
    answers = len(gateway.answered())
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=MODEL, messages=MESSAGES, temperature=3)
    assert (refused.value.code, refused.value.param) == ("invalid_value", "temperature")
    assert refused.value.request_id is not None
    assert len(gateway.answered()) == answers + 1
    with pytest.raises(openai.AuthenticationError):
        client.with_options(api_key="wrong").models.list()


async def test_async_chat_and_stream() -> None:
    async with async_client() as (gateway, client):
        whole = await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        async with client.chat.completions.stream(model=MODEL, messages=MESSAGES) as stream:
            built = await stream.get_final_completion()
        assert built.choices[0].message.content == whole.choices[0].message.content
        many = await asyncio.gather(
            *(client.completions.create(model=MODEL, prompt="x", seed=seed) for seed in range(20))
        )
        assert len({answer.choices[0].text for answer in many}) == 20
        assert gateway.replica.running == {}


async def test_a_poison_request_is_run_once() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        raise GenerationFailed("this request failed in the engine")
        yield Delta()

    async with async_client(script) as (gateway, client):
        with pytest.raises(openai.InternalServerError):
            await client.chat.completions.create(model=MODEL, messages=MESSAGES)
        assert len(gateway.replica.requests) == 1


async def test_the_client_raises_on_an_error_inside_a_stream() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="a")
        raise GenerationFailed("this request failed in the engine")

    async with async_client(script) as (_, client):
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        with pytest.raises(openai.APIError, match="failed in the engine"):
            async for _ in stream:
                pass


async def test_closing_a_stream_ends_its_request() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="a")
        await asyncio.Event().wait()

    async with async_client(script) as (gateway, client):
        stream = await client.chat.completions.create(model=MODEL, messages=MESSAGES, stream=True)
        await anext(aiter(stream))
        await stream.close()
        await gateway.replica.until(lambda: not gateway.replica.running)
        assert list(gateway.replica.ended.values()) == ["aborted"]
