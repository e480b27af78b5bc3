"""Every field that takes a number, given every kind of value that is none: refused by name, and nothing runs."""

from __future__ import annotations

import pytest

from support.gateways import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, chat, completion, embedding

FIELDS: dict[str, tuple[str, ...]] = {
    CHAT: (
        *("temperature", "top_p", "min_p", "top_k", "presence_penalty", "frequency_penalty", "seed", "n"),
        *("repetition_penalty", "min_tokens", "max_tokens", "max_completion_tokens", "prompt_logprobs"),
        *("top_logprobs", "logit_bias", "stop_token_ids"),
    ),
    COMPLETIONS: (
        *("temperature", "top_p", "top_k", "seed", "n", "best_of", "logprobs", "min_tokens", "max_tokens"),
        *("prompt_logprobs", "logit_bias", "stop_token_ids", "prompt"),
    ),
    EMBEDDINGS: ("dimensions", "input"),
}
NO_NUMBERS: tuple[object, ...] = (True, "", "1", "NaN", [None], [[[]]], {"a": 1}, {"1": "x"})
TOO_LARGE: tuple[object, ...] = (2**63, -(2**63) - 1, 2**64, 10**30, 1e308, -1e308)
GOOD = {CHAT: chat, COMPLETIONS: completion, EMBEDDINGS: embedding}
TEXTS = ("prompt", "input")


@pytest.mark.parametrize("value", [*NO_NUMBERS, *TOO_LARGE], ids=repr)
@pytest.mark.parametrize("path", FIELDS)
async def test_it_is_refused_and_the_field_is_named(gateway: Gateway, path: str, value: object) -> None:
    for field in FIELDS[path]:
        if field in TEXTS and isinstance(value, str):
            continue
        response = await gateway.post(path, {**GOOD[path](), field: value})
        assert response.status_code == 400, (field, response.text)
        error = response.json()["error"]
        assert (error["code"], error["param"]) == ("invalid_value", field)
        assert len(error["message"]) < 400
    assert gateway.replica.running == {}
