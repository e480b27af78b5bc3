"""The official client against the real server and model."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

import httpx2
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam

from support.served import Served

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "Name the capital of France."}]


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def whole(server: Served, client: openai.OpenAI) -> str:
    """The answer in one piece."""
    answer = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0)
    return answer.choices[0].message.content or ""


def test_the_model_knows_the_capital_of_france(whole: str) -> None:
    assert "Paris" in whole


def test_streaming_says_the_same(server: Served, client: openai.OpenAI, whole: str) -> None:
    stream = client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0, stream=True)
    assert "".join(chunk.choices[0].delta.content or "" for chunk in stream) == whole


def test_the_streaming_helper_says_the_same(server: Served, client: openai.OpenAI, whole: str) -> None:
    with client.chat.completions.stream(model=server.model, messages=QUESTION, temperature=0) as stream:
        seen = "".join(event.delta for event in stream if event.type == "content.delta")
        final = stream.get_final_completion()
    assert seen == final.choices[0].message.content == whole
    assert final.choices[0].finish_reason == "stop"


async def test_the_async_client_says_the_same_many_times_at_once(server: Served, whole: str) -> None:
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(
            *(
                client.chat.completions.create(model=server.model, messages=QUESTION, temperature=0)
                for _ in range(8)
            )
        )
    assert {answer.choices[0].message.content for answer in answers} == {whole}


def test_a_completion_continues_its_prompt(server: Served, client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=server.model, prompt="The capital of France is", max_tokens=3, temperature=0, logprobs=2
    )
    choice = answer.choices[0]
    assert choice.text.startswith(" Paris")
    assert choice.logprobs is not None and choice.logprobs.tokens is not None
    assert "".join(choice.logprobs.tokens) == choice.text


def test_seeded_choices_repeat_and_differ_from_each_other(server: Served, client: openai.OpenAI) -> None:
    def texts() -> list[str]:
        answer = client.completions.create(
            model=server.model, prompt="Once upon a time", n=3, seed=5, temperature=1, max_tokens=12
        )
        return [choice.text for choice in answer.choices]

    assert texts() == texts()
    assert len(set(texts())) == 3


def test_the_model_is_listed(server: Served, client: openai.OpenAI) -> None:
    assert [model.id for model in client.models.list()] == [server.model]
    assert client.models.retrieve(server.model).id == server.model


def test_tokens_go_there_and_back(server: Served) -> None:
    with httpx2.Client(base_url=server.url, timeout=30) as http:
        tokens = http.post("/tokenize", json={"model": server.model, "prompt": "naïve 🦙"}).json()["tokens"]
        text = http.post("/detokenize", json={"model": server.model, "tokens": tokens}).json()["prompt"]
    assert text == "naïve 🦙"
