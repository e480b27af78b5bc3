"""Prompts that can never fit are refused before anybody works on them."""

from __future__ import annotations

import pytest

from support.gateways import CHAT, COMPLETIONS, Gateway, chat, completion, make_gateway
from support.scripted import ENGINE_MAX_LEN, MAX_MODEL_LEN, ByteTokenizer

MOST = MAX_MODEL_LEN * ByteTokenizer.longest_token_bytes


class Counting(ByteTokenizer):
    """Remembers how many bytes it was given."""

    def __init__(self) -> None:
        self.seen: list[int] = []

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        self.seen.append(len(text.encode()))
        return super().encode(text, add_special=add_special)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        pytest.param(CHAT, chat("x" * MOST), "messages", id="chat"),
        pytest.param(COMPLETIONS, completion("x" * (MOST + 1)), "prompt", id="completion"),
        pytest.param(
            COMPLETIONS, completion("\U0001f642" * (MOST // 4 + 1)), "prompt", id="bytes, not letters"
        ),
        pytest.param("/tokenize", completion("x" * (MOST + 1)), "prompt", id="tokenize"),
        pytest.param("/tokenize", chat("x" * MOST), "messages", id="tokenize chat"),
    ],
)
async def test_more_bytes_than_any_tokens_hold_never_reach_the_tokenizer(
    path: str, body: dict[str, object], param: str
) -> None:
    tokenizer = Counting()
    gateway = make_gateway(tokenizer=tokenizer)
    response = await gateway.post(path, body)
    gateway.app.close()
    error = response.json()["error"]
    assert (response.status_code, error["code"]) == (400, "context_length_exceeded")
    assert error["param"] == param
    assert tokenizer.seen == []


async def test_what_may_fit_is_counted_in_tokens() -> None:
    tokenizer = Counting()
    gateway = make_gateway(tokenizer=tokenizer)
    assert (await gateway.post("/tokenize", {"prompt": "x" * MOST})).json()["count"] == MOST + 1
    response = await gateway.post(COMPLETIONS, completion(["a", "x" * MOST, "b"]))
    gateway.app.close()
    assert response.json()["error"]["code"] == "context_length_exceeded"
    assert tokenizer.seen == [MOST, 1, MOST], "the first refused prompt ends the work"


async def test_a_prompt_of_ids_is_measured_before_it_is_looked_through(gateway: Gateway) -> None:
    for ids in ([300] * (MAX_MODEL_LEN + 1), [300] * MAX_MODEL_LEN):
        response = await gateway.post(COMPLETIONS, completion(ids))
        assert response.json()["error"]["code"] == "context_length_exceeded"


@pytest.mark.parametrize("stream", [False, True])
async def test_the_engines_refusal_names_the_dialects_field(gateway: Gateway, stream: bool) -> None:
    taken = len("<s>user: \nassistant:")
    content = "x" * (ENGINE_MAX_LEN - taken)
    response = await gateway.post(CHAT, chat(content, max_tokens=1, stream=stream))
    error = response.json()["error"]
    assert (response.status_code, error["param"]) == (400, "messages")
    assert len(gateway.replica.requests) == 1
