"""Text completions: forms of prompts, echo, log-probabilities, order of choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator

import pytest

from support.gateways import COMPLETIONS, CREATED, Gateway, completion, make_gateway
from support.scripted import BOS, ENGINE_MAX_LEN, MAX_MODEL_LEN, MODEL, words
from tokenmill.core.delta import Delta, TokenLogprob, TopLogprob, Usage
from tokenmill.core.request import GenerateRequest


async def test_a_whole_answer_has_every_member_clients_read(gateway: Gateway) -> None:
    answer = (await gateway.post(COMPLETIONS, completion())).json()
    assert answer.pop("id").startswith("cmpl-")
    assert answer.pop("system_fingerprint").startswith("fp_")
    usage = answer.pop("usage")
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (3, 6, 9)
    text = "".join(words(gateway.replica.requests[0], 0))
    assert answer == {
        "object": "text_completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [{"index": 0, "text": text, "logprobs": None, "finish_reason": "stop"}],
    }


async def test_the_default_is_sixteen_tokens_or_what_fits(gateway: Gateway) -> None:
    await gateway.post(COMPLETIONS, completion())
    assert gateway.replica.requests[-1].sampling.max_tokens == 16
    await gateway.post(COMPLETIONS, completion([5] * (MAX_MODEL_LEN - 14)))
    assert gateway.replica.requests[-1].sampling.max_tokens == 14
    refused = await gateway.post(COMPLETIONS, completion([5] * (MAX_MODEL_LEN - 14), max_tokens=16))
    assert refused.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("ab", [(BOS, 97, 98)]),
        ("", [(BOS,)]),
        (["a", "b"], [(BOS, 97), (BOS, 98)]),
        ([97, 98], [(97, 98)]),
        ([[97], [98, 99]], [(97,), (98, 99)]),
    ],
)
async def test_forms_of_prompts(gateway: Gateway, prompt: object, expected: list[tuple[int, ...]]) -> None:
    response = await gateway.post(COMPLETIONS, completion(prompt))
    assert response.status_code == 200, response.text
    assert [request.prompt_ids for request in gateway.replica.requests] == expected


async def test_choices_are_numbered_by_prompt_then_by_n(gateway: Gateway) -> None:
    body = completion(["a", "b", "c"], n=2)
    choices = (await gateway.post(COMPLETIONS, body)).json()["choices"]
    assert [choice["index"] for choice in choices] == list(range(6))
    assert [choice["text"] for choice in choices] == [
        "".join(words(request, index)) for request in gateway.replica.requests for index in (0, 1)
    ]
    found = await gateway.stream(COMPLETIONS, {**body, "stream_options": {"include_usage": True}})
    for number, choice in enumerate(choices):
        own = [chunk["choices"][0] for chunk in found[:-1] if chunk["choices"][0]["index"] == number]
        assert "".join(part["text"] for part in own) == choice["text"]
        assert [part["finish_reason"] for part in own[-2:]] == [None, "stop"]
    assert found[-1]["usage"]["prompt_tokens"] == 6
    assert found[-1]["usage"]["completion_tokens"] == 36
    assert found[-1]["usage"]["prompt_tokens_details"]["cached_tokens"] == 6


async def test_requests_have_ids_of_their_own_even_if_clients_repeat_theirs(gateway: Gateway) -> None:
    for _ in range(2):
        await gateway.post(COMPLETIONS, completion(["a", "b"]), **{"x-request-id": "same"})
    ids = [request.request_id for request in gateway.replica.requests]
    assert len(set(ids)) == 4
    assert all(name.startswith("same-") for name in ids)


async def test_one_refused_prompt_refuses_all_before_anything_starts(gateway: Gateway) -> None:
    response = await gateway.post(COMPLETIONS, completion([[1], [1] * (MAX_MODEL_LEN + 1)]))
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert gateway.replica.requests == []


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_own_refusal_is_a_400_too(gateway: Gateway, stream: bool) -> None:
    prompt = [1] * (ENGINE_MAX_LEN - 4)
    response = await gateway.post(COMPLETIONS, completion(prompt, max_tokens=5, stream=stream))
    assert response.status_code == 400
    error = response.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize(("prompt", "echoed"), [("héllo", "héllo"), ([104, 105], "hi")])
async def test_echo_begins_with_the_prompt(
    gateway: Gateway, prompt: object, echoed: str, stream: bool
) -> None:
    body = completion(prompt, echo=True, n=2)
    if stream:
        found = await gateway.stream(COMPLETIONS, body)
        texts = [
            "".join(chunk["choices"][0]["text"] for chunk in found if chunk["choices"][0]["index"] == number)
            for number in (0, 1)
        ]
    else:
        texts = [choice["text"] for choice in (await gateway.post(COMPLETIONS, body)).json()["choices"]]
    request = gateway.replica.requests[0]
    assert texts == [echoed + "".join(words(request, index)) for index in (0, 1)]


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_of_no_tokens_is_the_prompt_and_asks_no_replica(gateway: Gateway, stream: bool) -> None:
    body = completion(
        "hi", echo=True, max_tokens=0, stream_options={"include_usage": True} if stream else None
    )
    if stream:
        found = await gateway.stream(COMPLETIONS, body)
        text, usage = "".join(chunk["choices"][0]["text"] for chunk in found[:-1]), found[-1]["usage"]
    else:
        answer = (await gateway.post(COMPLETIONS, body)).json()
        text, usage = answer["choices"][0]["text"], answer["usage"]
    assert text == "hi"
    assert (usage["prompt_tokens"], usage["completion_tokens"]) == (3, 0)
    assert gateway.replica.requests == []


async def test_echo_of_no_tokens_takes_a_prompt_that_fills_the_context(gateway: Gateway) -> None:
    full = completion([104] * MAX_MODEL_LEN, echo=True, max_tokens=0)
    answer = (await gateway.post(COMPLETIONS, full)).json()
    assert answer["choices"][0]["text"] == "h" * MAX_MODEL_LEN
    refused = await gateway.post(COMPLETIONS, completion("h" * MAX_MODEL_LEN, echo=True, max_tokens=0))
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


async def test_the_output_bound_has_two_names_here_too(gateway: Gateway) -> None:
    answer = await gateway.post(COMPLETIONS, completion(max_completion_tokens=2, max_tokens=2))
    assert answer.json()["usage"]["completion_tokens"] == 2
    refused = await gateway.post(COMPLETIONS, completion(max_completion_tokens=2, max_tokens=3))
    assert refused.json()["error"]["param"] == "max_tokens"


async def test_best_of_is_taken_where_it_changes_nothing(gateway: Gateway) -> None:
    assert (await gateway.post(COMPLETIONS, completion(n=2, best_of=2))).status_code == 200
    refused = await gateway.post(COMPLETIONS, completion(n=1, best_of=2))
    assert refused.json()["error"]["param"] == "best_of"


async def parts_of_characters(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """The text `aé€` in tokens that split both of its longer characters."""
    top = (TopLogprob(9, "z", b"z", -0.1),)
    tokens = [("a", b"a"), ("\ufffd", b"\xc3"), ("\ufffd", b"\xa9\xe2"), ("\ufffd", b"\x82\xac")]
    entries = tuple(TokenLogprob(number, text, raw, -1.0, top) for number, (text, raw) in enumerate(tokens))
    yield Delta(text="a", logprobs=entries[:2])
    await asyncio.sleep(0)
    yield Delta(text="é€", logprobs=entries[2:], finish_reason="stop", usage=Usage(1, 4))


@pytest.mark.parametrize("stream", [False, True])
async def test_text_offsets_point_at_the_character_a_token_begins_in(stream: bool) -> None:
    gateway = make_gateway(parts_of_characters)
    if stream:
        found = await gateway.stream(COMPLETIONS, completion(logprobs=1))
        lists = [choice["logprobs"] for chunk in found if (choice := chunk["choices"][0])["logprobs"]]
        logprobs = {key: [item for one in lists for item in one[key]] for key in lists[0]}
    else:
        answer = (await gateway.post(COMPLETIONS, completion(logprobs=1))).json()
        logprobs = answer["choices"][0]["logprobs"]
    assert logprobs["tokens"] == ["a", "\ufffd", "\ufffd", "\ufffd"]
    assert logprobs["token_logprobs"] == [-1.0] * 4
    # "é" begins at character 1; the third token continues it, the fourth continues "€" at 2.
    assert logprobs["text_offset"] == [0, 1, 1, 2]
    assert logprobs["top_logprobs"][0] == {"z": -0.1, "a": -1.0}
