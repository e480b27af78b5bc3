"""Chat completions: the shape of answers, whole and streamed, and what messages may be."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.gateways import CHAT, CREATED, Gateway, RawCall, chat, chunks, make_gateway
from support.scripted import MODEL, words
from tokenmill.core.delta import Delta, TokenLogprob, Usage
from tokenmill.core.request import GenerateRequest, SamplingParams


async def prompt_of(gateway: Gateway, **body: object) -> str:
    response = await gateway.post(CHAT, {"model": MODEL, **body})
    assert response.status_code == 200, response.text
    return bytes(gateway.replica.requests[-1].prompt_ids).decode()


async def test_a_whole_answer_has_every_member_clients_read(gateway: Gateway) -> None:
    response = await gateway.post(CHAT, chat())
    answer = response.json()
    text = "".join(words(gateway.replica.requests[0], 0))
    assert answer.pop("id").startswith("chatcmpl-")
    assert answer.pop("system_fingerprint").startswith("fp_")
    assert answer == {
        "object": "chat.completion",
        "created": CREATED,
        "model": MODEL,
        "choices": [
            {
                "index": 0,
                "message": {"role": "assistant", "content": text, "refusal": None},
                "logprobs": None,
                "finish_reason": "stop",
            }
        ],
        "usage": {
            "prompt_tokens": 22,
            "completion_tokens": 6,
            "total_tokens": 28,
            "prompt_tokens_details": {"cached_tokens": 2, "audio_tokens": 0},
            "completion_tokens_details": {
                "reasoning_tokens": 0,
                "audio_tokens": 0,
                "accepted_prediction_tokens": 0,
                "rejected_prediction_tokens": 0,
            },
        },
    }
    assert response.headers["content-type"] == "application/json"
    assert int(response.headers["openai-processing-ms"]) >= 0


async def test_a_stream_begins_with_the_role_and_ends_with_the_reason(gateway: Gateway) -> None:
    found = await gateway.stream(CHAT, chat())
    assert all(set(chunk) == set(found[0]) for chunk in found)
    for member in ("id", "object", "created", "model", "system_fingerprint"):
        assert len({chunk[member] for chunk in found}) == 1
    assert found[0]["object"] == "chat.completion.chunk"
    choices = [chunk["choices"][0] for chunk in found]
    assert choices[0]["delta"] == {"role": "assistant", "content": "", "refusal": None}
    assert all("role" not in choice["delta"] for choice in choices[1:])
    assert [choice["delta"]["content"] for choice in choices[1:-1]] == words(gateway.replica.requests[0], 0)
    assert choices[-1]["delta"] == {}
    assert [choice["finish_reason"] for choice in choices] == [None] * (len(choices) - 1) + ["stop"]
    assert all("usage" not in chunk for chunk in found)


async def test_include_usage_adds_one_chunk_without_choices(gateway: Gateway) -> None:
    found = await gateway.stream(CHAT, chat(stream_options={"include_usage": True}))
    assert [chunk["usage"] for chunk in found[:-1]] == [None] * (len(found) - 1)
    assert found[-1]["choices"] == []
    whole = (await gateway.post(CHAT, chat())).json()
    assert found[-1]["usage"] == whole["usage"]


async def test_choices_of_a_stream_are_told_apart_by_their_index(gateway: Gateway) -> None:
    found = await gateway.stream(CHAT, chat(n=3, stream_options={"include_usage": True}))
    whole = (await gateway.post(CHAT, chat(n=3))).json()
    for number, choice in enumerate(whole["choices"]):
        own = [chunk["choices"][0] for chunk in found[:-1] if chunk["choices"][0]["index"] == number]
        assert "role" in own[0]["delta"]
        assert "".join(part["delta"].get("content", "") for part in own) == choice["message"]["content"]
        assert own[-1]["finish_reason"] == choice["finish_reason"]
    order = [chunk["choices"][0]["index"] for chunk in found[:-1]]
    assert order != sorted(order), "choices take turns"
    assert found[-1]["usage"]["completion_tokens"] == 18
    assert found[-1]["usage"]["prompt_tokens"] == 22, "the prompt counts once"


async def test_logprobs_have_bytes_and_alternatives(gateway: Gateway) -> None:
    body = chat(logprobs=True, top_logprobs=2, max_tokens=1)
    content = (await gateway.post(CHAT, body)).json()["choices"][0]["logprobs"]["content"]
    word = words(gateway.replica.requests[0], 0)[0]
    assert content == [
        {
            "token": word,
            "logprob": -0.5,
            "bytes": list(word.encode()),
            "top_logprobs": [
                {"token": " alt0", "logprob": -1.0, "bytes": list(b" alt0")},
                {"token": " alt1", "logprob": -2.0, "bytes": list(b" alt1")},
            ],
        }
    ]
    streamed = await gateway.stream(CHAT, body)
    assert streamed[1]["choices"][0]["logprobs"] == {"content": content, "refusal": None}
    assert streamed[-1]["choices"][0]["logprobs"] is None


async def test_infinite_logprobs_are_clamped() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        entries = tuple(TokenLogprob(1, "x", b"x", value) for value in (float("-inf"), float("nan"), -1.5))
        yield Delta(text="xxx", logprobs=entries, finish_reason="stop", usage=Usage(1, 3))

    response = await make_gateway(script).post(CHAT, chat(logprobs=True))
    found = [entry["logprob"] for entry in response.json()["choices"][0]["logprobs"]["content"]]
    assert found == [-9999.0, -9999.0, -1.5]


async def test_a_delta_without_text_or_logprobs_sends_nothing() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(token_ids=(1,))
        await asyncio.sleep(0)
        yield Delta(text="a", token_ids=(2,))
        await asyncio.sleep(0)
        yield Delta(token_ids=(3,), finish_reason="stop", usage=Usage(1, 3))

    found = await make_gateway(script).stream(CHAT, chat())
    deltas = [chunk["choices"][0]["delta"] for chunk in found]
    assert deltas == [{"role": "assistant", "content": "", "refusal": None}, {"content": "a"}, {}]


async def test_a_part_of_a_character_reaches_the_client_through_its_logprobs() -> None:
    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        yield Delta(text="", logprobs=(TokenLogprob(1, "\ufffd", b"\xc3", -1.0),))
        await asyncio.sleep(0)
        yield Delta(
            text="é",
            logprobs=(TokenLogprob(2, "\ufffd", b"\xa9", -1.0),),
            finish_reason="stop",
            usage=Usage(1, 2),
        )

    found = await make_gateway(script).stream(CHAT, chat(logprobs=True))
    entries = [
        entry for chunk in found for entry in (chunk["choices"][0]["logprobs"] or {"content": []})["content"]
    ]
    assert bytes(byte for entry in entries for byte in entry["bytes"]).decode() == "é"
    assert "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in found) == "é"


async def test_every_sampling_field_reaches_the_replica(gateway: Gateway) -> None:
    fields = {
        "temperature": 0.7,
        "top_k": 5,
        "top_p": 0.9,
        "min_p": 0.1,
        "presence_penalty": 0.5,
        "frequency_penalty": -0.5,
        "repetition_penalty": 1.1,
        "logit_bias": {"5": 10},
        "seed": -3,
        "n": 2,
        "stop": ["END", "STOP"],
        "stop_token_ids": [7, 9],
        "min_tokens": 2,
        "max_completion_tokens": 4,
        "ignore_eos": True,
    }
    await gateway.post(CHAT, chat(**fields))
    assert gateway.replica.requests[0].sampling == SamplingParams(
        temperature=0.7,
        top_k=5,
        top_p=0.9,
        min_p=0.1,
        presence_penalty=0.5,
        frequency_penalty=-0.5,
        repetition_penalty=1.1,
        logit_bias={5: 10.0},
        seed=-3,
        n=2,
        stop=("END", "STOP"),
        stop_token_ids=(7, 9),
        min_tokens=2,
        max_tokens=4,
        ignore_eos=True,
    )


async def test_without_fields_the_defaults_hold(gateway: Gateway) -> None:
    await gateway.post(CHAT, chat())
    assert gateway.replica.requests[0].sampling == SamplingParams()


async def test_null_is_as_absent_for_every_field(gateway: Gateway) -> None:
    fields = (
        "temperature",
        "max_tokens",
        "stop",
        "logprobs",
        "tools",
        "stream",
        "stream_options",
        "n",
        "unheard_of",
    )
    response = await gateway.post(CHAT, chat(**dict.fromkeys(fields)))
    assert response.status_code == 200
    assert gateway.replica.requests[0].sampling == SamplingParams()


@pytest.mark.parametrize(
    "fields",
    [{"max_tokens": 3}, {"max_completion_tokens": 3}, {"max_tokens": 3, "max_completion_tokens": 3}],
)
async def test_the_two_names_of_the_output_bound(gateway: Gateway, fields: dict[str, object]) -> None:
    response = await gateway.post(CHAT, chat(**fields))
    assert response.json()["usage"]["completion_tokens"] == 3
    assert response.json()["choices"][0]["finish_reason"] == "length"


async def test_top_k_of_minus_one_is_the_whole_vocabulary(gateway: Gateway) -> None:
    await gateway.post(CHAT, chat(top_k=-1))
    assert gateway.replica.requests[0].sampling.top_k == 0


async def test_all_roles_and_forms_of_content(gateway: Gateway) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
    messages: list[dict[str, Any]] = [
        {"role": "developer", "content": "be brief"},
        {"role": "user", "content": [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]},
        {"role": "assistant", "content": None, "tool_calls": [call], "refusal": None},
        {"role": "tool", "content": "42", "tool_call_id": "c1"},
        {"role": "assistant", "content": "", "annotations": []},
        {"role": "user", "content": "", "name": "ann"},
    ]
    assert await prompt_of(gateway, messages=messages) == (
        "<s>system: be brief\nuser: one\ntwo\n"
        'assistant: <tool_call>\n{"name": "f", "arguments": {}}\n</tool_call>\n'
        "user: <tool_response>\n42\n</tool_response>\nassistant: \nuser: \nassistant:"
    )


async def test_the_template_owns_the_beginning_of_sequence(gateway: Gateway) -> None:
    await gateway.post(CHAT, chat())
    assert 256 not in gateway.replica.requests[0].prompt_ids


async def test_a_model_without_a_template_refuses_chat() -> None:
    response = await make_gateway(template=None).post(CHAT, chat())
    assert response.status_code == 400
    assert response.json()["error"]["code"] == "no_chat_template"


async def test_the_header_waits_for_the_first_delta() -> None:
    first = asyncio.Event()

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        await first.wait()
        yield Delta(text="a", finish_reason="stop", usage=Usage(1, 1))

    gateway = make_gateway(script)
    call = RawCall(gateway.app, CHAT, json.dumps(chat(stream=True)).encode())
    running = asyncio.create_task(call.run())
    await gateway.replica.until(lambda: bool(gateway.replica.running))
    assert call.sent == []
    first.set()
    await running
    assert call.sent[0]["status"] == 200
    assert len(chunks(b"".join(message.get("body", b"") for message in call.sent).decode())) == 3


async def test_log_probabilities_of_the_prompt_come_once_for_all_choices(gateway: Gateway) -> None:
    answer = (await gateway.post(CHAT, chat(prompt_logprobs=1, n=2))).json()
    found = answer["prompt_logprobs"]
    prompt = gateway.replica.requests[0].prompt_ids
    assert (len(found), found[0]) == (len(prompt), None)
    assert found[1][str(prompt[1])] == {"logprob": -1.0, "rank": 2, "decoded_token": chr(prompt[1])}
    assert found[1]["0"] == {"logprob": -1.0, "rank": 1, "decoded_token": " alt0"}
    assert "prompt_logprobs" not in (await gateway.post(CHAT, chat())).json()
    refused = (await gateway.post(CHAT, chat(prompt_logprobs=1, stream=True))).json()["error"]
    assert (refused["code"], refused["param"]) == ("invalid_value", "prompt_logprobs")
