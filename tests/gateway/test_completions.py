"""Text completions: forms of prompts, echo, log-probabilities, order of choices."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.gateways import COMPLETIONS, CREATED, Gateway, completion, make_gateway
from support.scripted import BOS, ENGINE_MAX_LEN, MAX_MODEL_LEN, MODEL, ByteTokenizer, words
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
async def test_echo_of_no_tokens_is_the_prompt(gateway: Gateway, stream: bool) -> None:
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
    assert gateway.replica.requests[0].sampling.max_tokens == 0


async def test_echo_of_no_tokens_takes_a_prompt_that_fills_the_context(gateway: Gateway) -> None:
    full = completion([104] * ENGINE_MAX_LEN, echo=True, max_tokens=0)
    answer = (await gateway.post(COMPLETIONS, full)).json()
    assert answer["choices"][0]["text"] == "h" * ENGINE_MAX_LEN
    refused = await gateway.post(COMPLETIONS, completion("h" * MAX_MODEL_LEN, echo=True, max_tokens=0))
    error = refused.json()["error"]
    assert (error["code"], error["param"]) == ("context_length_exceeded", "prompt")


async def test_the_output_bound_has_two_names_here_too(gateway: Gateway) -> None:
    answer = await gateway.post(COMPLETIONS, completion(max_completion_tokens=2, max_tokens=2))
    assert answer.json()["usage"]["completion_tokens"] == 2
    refused = await gateway.post(COMPLETIONS, completion(max_completion_tokens=2, max_tokens=3))
    assert refused.json()["error"]["param"] == "max_tokens"


async def lists_of(gateway: Gateway, body: dict[str, object], stream: bool) -> tuple[str, dict[str, Any]]:
    """Text and joined log-probability lists of the first choice."""
    if not stream:
        choice = (await gateway.post(COMPLETIONS, body)).json()["choices"][0]
        return choice["text"], choice["logprobs"]
    found = [chunk["choices"][0] for chunk in await gateway.stream(COMPLETIONS, body)]
    lists = [choice["logprobs"] for choice in found if choice["logprobs"]]
    return (
        "".join(choice["text"] for choice in found),
        {key: [item for one in lists for item in one[key]] for key in lists[0]},
    )


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("max_tokens", [0, 1, 2])
async def test_echo_with_logprobs_goes_from_the_prompt_into_the_completion(
    gateway: Gateway, stream: bool, max_tokens: int
) -> None:
    body = completion([104, 105, 33], echo=True, logprobs=1, max_tokens=max_tokens)
    text, lists = await lists_of(gateway, body, stream)
    answer = words(gateway.replica.requests[0], 0)[:max_tokens]
    assert text == "hi!" + "".join(answer)
    assert lists["tokens"] == ["h", "i", "!", *answer]
    assert lists["token_logprobs"] == [None, -1.0, -2.0, *[-0.5] * max_tokens]
    assert lists["top_logprobs"][:2] == [None, {" alt0": -1.0, "i": -1.0}]
    assert lists["text_offset"] == [0, 1, 2, 3, 8][: 3 + max_tokens]
    assert gateway.replica.requests[0].sampling.prompt_logprobs == 1


@pytest.mark.parametrize("stream", [False, True])
async def test_echo_with_no_alternatives_tells_the_tokens_alone(gateway: Gateway, stream: bool) -> None:
    text, lists = await lists_of(gateway, completion("hi", echo=True, logprobs=0, max_tokens=1), stream)
    # The beginning of the sequence is a token of the prompt and not of its text.
    assert lists["tokens"][:3] == ["<s>", "h", "i"]
    assert lists["text_offset"] == [0, 0, 1, 2]
    assert lists["top_logprobs"][1:3] == [{"h": -1.0}, {"i": -2.0}]
    assert text.startswith("hi ")


async def test_a_harness_that_scores_prompts_can_slice_by_its_own_tokens(gateway: Gateway) -> None:
    prompts = [[1, 2, 3, 4], [5, 6]]
    answer = await gateway.post(
        COMPLETIONS, completion(prompts, echo=True, logprobs=1, max_tokens=1, temperature=0, seed=1234)
    )
    for prompt, choice in zip(prompts, answer.json()["choices"], strict=True):
        assert len(choice["logprobs"]["token_logprobs"]) == len(prompt) + 1
        assert choice["logprobs"]["token_logprobs"][1:-1] == [-float(at) for at in range(1, len(prompt))]


class LeadingSpace(ByteTokenizer):
    first_token_strips_space = True


async def test_offsets_of_an_echo_do_not_count_a_space_its_text_lacks() -> None:
    gateway = make_gateway(tokenizer=LeadingSpace())
    _, lists = await lists_of(gateway, completion([32, 104, 105], echo=True, logprobs=0), False)
    assert lists["text_offset"][:3] == [0, 0, 1]


async def test_log_probabilities_of_the_prompt_come_by_token_id(gateway: Gateway) -> None:
    body = completion([[104, 0], [105]], prompt_logprobs=1, max_tokens=0)
    choices = (await gateway.post(COMPLETIONS, body)).json()["choices"]
    alternative = {"logprob": -1.0, "rank": 1, "decoded_token": " alt0"}
    assert [choice["prompt_logprobs"] for choice in choices] == [[None, {"0": alternative}], [None]]
    first = (await gateway.post(COMPLETIONS, completion([104, 105], prompt_logprobs=0))).json()["choices"][0]
    assert first["prompt_logprobs"] == [None, {"105": {"logprob": -1.0, "rank": 2, "decoded_token": "i"}}]
    assert first["logprobs"] is None
    plain = (await gateway.post(COMPLETIONS, completion())).json()["choices"][0]
    assert "prompt_logprobs" not in plain


async def test_each_list_has_the_alternatives_it_was_asked_for(gateway: Gateway) -> None:
    body = completion([104, 105], echo=True, logprobs=1, prompt_logprobs=3, max_tokens=1)
    choice = (await gateway.post(COMPLETIONS, body)).json()["choices"][0]
    assert gateway.replica.requests[0].sampling.prompt_logprobs == 3
    assert gateway.replica.requests[0].sampling.logprobs == 1
    assert len(choice["prompt_logprobs"][1]) == 4
    assert len(choice["logprobs"]["top_logprobs"][1]) == 2


async def test_log_probabilities_of_all_prompts_are_bounded_together(gateway: Gateway) -> None:
    # 33 prompts x 400 tokens x 4 choices x 6 are 316,800 of at most 262,144; with 3 choices it is 237,600
    body = completion([[1] * 400] * 33, echo=True, logprobs=5, max_tokens=0)
    refused = await gateway.post(COMPLETIONS, {**body, "n": 4})
    assert refused.json()["error"]["param"] == "logprobs"
    assert gateway.replica.requests == []
    assert (await gateway.post(COMPLETIONS, {**body, "n": 3})).status_code == 200


CHANCES = (-3.0, -1.0, -2.0, -1.0)


async def of_given_chances(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
    """Choice 0 has one token of -3, choice 1 two of -1, choice 2 one of -2, choice 3 one of -1."""
    for index in range(request.sampling.n):
        token = TokenLogprob(7, "x", b"x", CHANCES[index])
        count = 2 if index == 1 else 1
        yield Delta(
            index=index,
            text=str(index),
            logprobs=(token,) * count if request.sampling.logprobs is not None else (),
            finish_reason="stop",
            usage=Usage(len(request.prompt_ids), count),
        )


async def test_best_of_shows_the_likeliest_by_mean_and_counts_all() -> None:
    gateway = make_gateway(of_given_chances)
    answer = (await gateway.post(COMPLETIONS, completion([[1], [2]], n=3, best_of=4, echo=True))).json()
    # by their means; of the two equal ones the earlier is first, though it is longer
    assert [(choice["index"], choice["text"][1:]) for choice in answer["choices"]] == [
        (0, "1"),
        (1, "3"),
        (2, "2"),
        (3, "1"),
        (4, "3"),
        (5, "2"),
    ]
    assert [choice["text"][0] for choice in answer["choices"]] == ["\x01"] * 3 + ["\x02"] * 3
    assert {choice["logprobs"] for choice in answer["choices"]} == {None}
    assert (answer["usage"]["prompt_tokens"], answer["usage"]["completion_tokens"]) == (2, 10)
    assert [request.sampling.n for request in gateway.replica.requests] == [4, 4]


async def test_best_of_equal_to_n_is_n(gateway: Gateway) -> None:
    await gateway.post(COMPLETIONS, completion(n=2, best_of=2))
    await gateway.stream(COMPLETIONS, completion(n=2, best_of=2))
    assert [(r.sampling.n, r.sampling.logprobs) for r in gateway.replica.requests] == [(2, None)] * 2


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
