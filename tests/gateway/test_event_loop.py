"""What takes long does not run on the event loop."""

from __future__ import annotations

import json
import threading

import pytest

from support.gateways import CHAT, chat, make_gateway
from support.scripted import ByteTokenizer
from tokenmill.gateway import body


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
