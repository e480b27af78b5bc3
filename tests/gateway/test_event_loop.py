"""What takes long does not run on the event loop."""

from __future__ import annotations

import json
import threading

import pytest

from support.gateways import CHAT, COMPLETIONS, EMBEDDINGS, chat, completion, embedding, make_gateway
from support.scripted import ByteTokenizer
from tokenmill.gateway import body, embeddings, generation, openai_types


@pytest.mark.parametrize(("size", "on_loop"), [(1000, True), (600 << 10, False)])
async def test_large_bodies_are_decoded_on_another_thread(
    size: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: list[int] = []
    decode = body.decode_json

    def noting(data: bytes) -> object:
        threads.append(threading.get_ident())
        return decode(data)

    monkeypatch.setattr(body, "decode_json", noting)
    gateway = make_gateway()
    response = await gateway.post(CHAT, chat("x" * size))
    gateway.app.close()
    assert response.json()["error"]["code"] == "context_length_exceeded", "it was read to its end"
    assert [thread == threading.get_ident() for thread in threads] == [on_loop]


async def test_a_fault_found_on_the_other_thread_is_the_same_400() -> None:
    gateway = make_gateway()
    async with gateway.client() as client:
        response = await client.post(CHAT, content=json.dumps(chat("x" * (600 << 10)))[:-1].encode())
    assert (response.status_code, response.json()["error"]["code"]) == (400, "invalid_json")


async def test_texts_of_tokens_are_made_on_the_tokenizers_thread() -> None:
    class Noting(ByteTokenizer):
        def token_text(self, token_id: int) -> str:
            threads.add(threading.current_thread().name.partition("_")[0])
            return super().token_text(token_id)

    threads: set[str] = set()
    gateway = make_gateway(tokenizer=Noting())
    answer = await gateway.post("/tokenize", {"prompt": "hi", "return_token_strs": True})
    gateway.app.close()
    assert answer.json()["token_strs"] == ["<s>", "h", "i"]
    assert threads == {"tokenizer"}


@pytest.mark.parametrize(("tokens", "on_loop"), [(10, True), (200, False)])
@pytest.mark.parametrize("stream", [False, True])
async def test_long_lists_of_log_probabilities_are_written_on_another_thread(
    tokens: int, on_loop: bool, stream: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    written = openai_types.clamp

    def noting(logprob: float) -> float:
        threads.add(threading.get_ident())
        return written(logprob)

    monkeypatch.setattr(generation, "ON_LOOP_ENTRIES", 100)
    monkeypatch.setattr("tokenmill.gateway.completion_render.clamp", noting)
    gateway = make_gateway()
    body = completion([1] * tokens, echo=True, logprobs=0, max_tokens=0, stream=stream)
    assert (await gateway.post(COMPLETIONS, body)).status_code == 200
    gateway.app.close()
    assert (threads == {threading.get_ident()}) is on_loop


@pytest.mark.parametrize(("inputs", "on_loop"), [(3, True), (100, False)])
async def test_many_embeddings_are_written_on_another_thread(
    inputs: int, on_loop: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads: set[int] = set()
    written = embeddings._written

    def noting(data: bytes, encoding: embeddings.Encoding) -> list[float] | str:
        threads.add(threading.get_ident())
        return written(data, encoding)

    monkeypatch.setattr(embeddings, "_written", noting)
    gateway = make_gateway()
    await gateway.post(EMBEDDINGS, embedding(["x"] * inputs))
    gateway.app.close()
    assert (threads == {threading.get_ident()}) is on_loop
