"""Many streams at once against the real server: everyone is answered, counted exactly, and nothing is kept.

`make load` runs it with 64 streams and outputs of up to 200 tokens.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import openai
import pytest

from support.served import Served, serving

FULL = os.environ.get("TOKENMILL_TEST_LOAD") == "full"
STREAMS, LONGEST_OUTPUT = (64, 200) if FULL else (24, 80)
# A pool that the mix overflows while it runs.
SMALL_POOL = 64 if FULL else 20
VOCAB = 49152


@dataclass(frozen=True)
class Asked:
    prompt: list[int]
    output: int

    @property
    def slots(self) -> int:
        """KV slots it needs at its longest: the newest token needs none."""
        return len(self.prompt) + self.output - 1


@dataclass(frozen=True)
class Answered:
    text: str
    reasons: Sequence[str]
    prompt_tokens: int
    completion_tokens: int


def mix(seed: int, count: int = STREAMS) -> list[Asked]:
    """Prompts of 10 to 1500 tokens, outputs of 1 to `LONGEST_OUTPUT`."""
    chance = random.Random(seed)
    return [
        Asked(
            [chance.randrange(17, VOCAB) for _ in range(chance.randint(10, 1500))],
            chance.randint(1, LONGEST_OUTPUT),
        )
        for _ in range(count)
    ]


def growing() -> list[Asked]:
    """What overflows a small pool: at full size the mix does, else short prompts with longer outputs."""
    if FULL:
        return mix(1)
    chance = random.Random(3)
    prompts = [[chance.randrange(17, VOCAB) for _ in range(chance.randint(10, 200))] for _ in range(12)]
    return [Asked(prompt, 100) for prompt in prompts]


async def ask(client: openai.AsyncOpenAI, model: str, asked: Asked) -> Answered | openai.BadRequestError:
    try:
        stream = await client.completions.create(
            model=model,
            prompt=asked.prompt,
            max_tokens=asked.output,
            temperature=0,
            stream=True,
            stream_options={"include_usage": True},
            extra_body={"ignore_eos": True},
        )
    except openai.BadRequestError as refused:
        return refused
    text, reasons, usage = "", [], None
    async for chunk in stream:
        for choice in chunk.choices:
            text += choice.text
            if choice.finish_reason is not None:
                reasons.append(choice.finish_reason)
        usage = chunk.usage or usage
    assert usage is not None
    return Answered(text, reasons, usage.prompt_tokens, usage.completion_tokens)


async def ask_all(server: Served, asked: list[Asked]) -> Sequence[Answered | openai.BadRequestError]:
    async with openai.AsyncOpenAI(
        base_url=f"{server.url}/v1", api_key="none", timeout=600, max_retries=0
    ) as client:
        return await asyncio.gather(*(ask(client, server.model, one) for one in asked))


def answers(server: Served, asked: list[Asked]) -> list[Answered]:
    found = asyncio.run(ask_all(server, asked))
    assert not [one for one in found if isinstance(one, openai.BadRequestError)]
    return [one for one in found if isinstance(one, Answered)]


def check(asked: list[Asked], found: list[Answered]) -> None:
    for want, got in zip(asked, found, strict=True):
        assert got.reasons == ["length"]
        assert (got.prompt_tokens, got.completion_tokens) == (len(want.prompt), want.output)


def idle(server: Served) -> bool:
    return (
        server.metric("tokenmill_engine_requests_running") == 0
        and server.metric("tokenmill_engine_requests_waiting") == 0
        and server.metric("tokenmill_engine_kv_blocks", state="active") == 0
    )


@dataclass(frozen=True)
class Calm:
    """Answers of a server with room: what every other server has to repeat."""

    mix: list[Answered]
    growing: list[Answered]


@pytest.fixture(scope="module")
def calm(small_model_path: Path) -> Calm:
    with serving(small_model_path) as server:
        first = answers(server, mix(1))
        check(mix(1), first)
        assert idle(server)
        after_one = server.rss_bytes()
        check(mix(2), answers(server, mix(2)))
        assert idle(server)
        assert server.rss_bytes() - after_one <= 64 << 20
        # KV slots that hold a token, over those allocated, summed over all steps
        used = server.metric("tokenmill_engine_kv_token_steps_total")
        allocated = server.metric("tokenmill_engine_kv_slot_steps_total")
        assert used / allocated >= 0.9
        planned = server.metric("tokenmill_memory_bytes", kind="planned")
        assert server.rss_bytes() <= planned + (300 << 20)
        return Calm(first, first if FULL else answers(server, growing()))


@pytest.mark.timeout(1800)
def test_a_small_pool_gives_the_same_answers_by_preempting(calm: Calm, small_model_path: Path) -> None:
    with serving(small_model_path, "--num-kv-blocks", str(SMALL_POOL)) as server:
        found = answers(server, growing())
        assert server.metric("tokenmill_engine_preemptions_total") > 0
        assert idle(server)
    check(growing(), found)
    assert [one.text for one in found] == [one.text for one in calm.growing]


@pytest.mark.timeout(1800)
def test_a_tiny_pool_refuses_exactly_what_can_never_fit(calm: Calm, small_model_path: Path) -> None:
    asked = mix(1)
    with serving(small_model_path, "--num-kv-blocks", "40") as server:
        found = asyncio.run(ask_all(server, asked))
        assert idle(server)
    for want, got, before in zip(asked, found, calm.mix, strict=True):
        if want.slots > 40 * 32:
            assert isinstance(got, openai.BadRequestError)
            assert got.code == "context_length_exceeded"
        else:
            assert got == before
    assert {isinstance(one, Answered) for one in found} == {True, False}, "the mix must hold both kinds"
