"""Tokenize and detokenize."""

from __future__ import annotations

import pytest

from support.gateways import Gateway, chat
from support.scripted import BOS, MAX_MODEL_LEN, MODEL


async def test_a_prompt_is_tokenized_as_completions_would(gateway: Gateway) -> None:
    answer = (await gateway.post("/tokenize", {"model": MODEL, "prompt": "hé"})).json()
    assert answer == {
        "count": 4,
        "max_model_len": MAX_MODEL_LEN,
        "tokens": [BOS, *"hé".encode()],
        "token_strs": None,
    }


async def test_special_tokens_and_texts_on_request(gateway: Gateway) -> None:
    body = {"prompt": "hi", "add_special_tokens": False, "return_token_strs": True}
    answer = (await gateway.post("/tokenize", body)).json()
    assert (answer["tokens"], answer["token_strs"]) == ([104, 105], ["h", "i"])


async def test_messages_are_tokenized_as_chat_would(gateway: Gateway) -> None:
    tokens = (await gateway.post("/tokenize", chat())).json()["tokens"]
    await gateway.post("/v1/chat/completions", chat())
    assert tuple(tokens) == gateway.replica.requests[0].prompt_ids
    open_ended = (await gateway.post("/tokenize", chat(add_generation_prompt=False))).json()["tokens"]
    assert bytes(open_ended) == b"<s>user: hi\n"


async def test_there_and_back(gateway: Gateway) -> None:
    tokens = (await gateway.post("/tokenize", {"prompt": "there 🙂"})).json()["tokens"]
    answer = (await gateway.post("/detokenize", {"model": MODEL, "tokens": tokens})).json()
    assert answer == {"prompt": "<s>there 🙂"}


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/tokenize", {}, "prompt"),
        ("/tokenize", {"prompt": "x", "messages": []}, "prompt"),
        ("/tokenize", {"prompt": 5}, "prompt"),
        ("/tokenize", {"prompt": "x", "model": "other"}, "model"),
        ("/tokenize", {"prompt": "x", "odd": 1}, "odd"),
        ("/tokenize", {"prompt": "x", "add_generation_prompt": True}, "add_generation_prompt"),
        ("/tokenize", {**chat(), "add_special_tokens": True}, "add_special_tokens"),
        ("/tokenize", {"messages": []}, "messages"),
        ("/detokenize", {"tokens": "x"}, "tokens"),
        ("/detokenize", {"tokens": [300]}, "tokens"),
        ("/detokenize", {"tokens": [-1]}, "tokens"),
        ("/detokenize", {}, "tokens"),
    ],
)
async def test_bad_bodies_are_named(gateway: Gateway, path: str, body: dict[str, object], param: str) -> None:
    response = await gateway.post(path, body)
    assert response.status_code in (400, 404), response.text
    assert response.json()["error"]["param"] == param
