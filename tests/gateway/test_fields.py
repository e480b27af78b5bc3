"""The field table against what real clients can send."""

from __future__ import annotations

import pytest
from openai.types import completion_create_params as completions_api
from openai.types import embedding_create_params as embeddings_api
from openai.types.chat import completion_create_params as chat_api

from support.gateways import CHAT as CHAT_PATH
from support.gateways import Gateway, chat
from tokenmill.core.errors import InvalidRequest, UnsupportedParameter
from tokenmill.gateway.openai_fields import CHAT, COMPLETIONS, DETOKENIZE, EMBEDDINGS, TOKENIZE, Fields

ALL = {
    "chat": CHAT,
    "completions": COMPLETIONS,
    "embeddings": EMBEDDINGS,
    "tokenize": TOKENIZE,
    "detokenize": DETOKENIZE,
}


def names(api: type) -> set[str]:
    return {name for one in api.__mro__ for name in getattr(one, "__annotations__", {})}


@pytest.mark.parametrize(
    ("fields", "sendable"),
    [
        (CHAT, names(chat_api.CompletionCreateParamsStreaming) | names(chat_api.CompletionCreateParamsBase)),
        (
            COMPLETIONS,
            names(completions_api.CompletionCreateParamsStreaming)
            | names(completions_api.CompletionCreateParamsBase),
        ),
        (EMBEDDINGS, names(embeddings_api.EmbeddingCreateParams)),
    ],
    ids=["chat", "completions", "embeddings"],
)
def test_every_field_of_the_official_client_has_its_place(fields: Fields, sendable: set[str]) -> None:
    assert len(sendable) >= 5
    assert sendable - fields.implemented - set(fields.no_ops) - fields.refused == set()


@pytest.mark.parametrize("route", ALL)
def test_a_field_has_one_place(route: str) -> None:
    fields = ALL[route]
    assert not fields.implemented & set(fields.no_ops)
    assert not fields.implemented & fields.refused
    assert not set(fields.no_ops) & fields.refused


@pytest.mark.parametrize(
    "harmless",
    [
        {"user": "ann"},
        {"metadata": {"k": "v"}},
        {"store": False},
        {"service_tier": "auto"},
        {"service_tier": "default"},
        {"safety_identifier": "s"},
        {"prompt_cache_key": "p"},
        {"prompt_cache_retention": "24h"},
        {"parallel_tool_calls": True},
        {"tools": []},
        {"tool_choice": "none"},
        {"functions": [], "function_call": "none"},
        {"response_format": {"type": "text"}},
        {"modalities": ["text"]},
        {"prediction": {"type": "content", "content": "x"}},
        {"skip_special_tokens": True, "use_beam_search": False, "length_penalty": 1.0, "best_of": 1},
    ],
    ids=lambda fields: "+".join(fields),
)
async def test_what_changes_nothing_is_taken(gateway: Gateway, harmless: dict[str, object]) -> None:
    plain = await gateway.post(CHAT_PATH, chat())
    response = await gateway.post(CHAT_PATH, chat(**harmless))
    assert response.status_code == 200, response.text
    assert response.json()["choices"] == plain.json()["choices"]


@pytest.mark.parametrize(
    "asking",
    [
        {"store": True},
        {"skip_special_tokens": False},
        {"length_penalty": 2},
        {"functions": [{"name": "f"}]},
        {"function_call": {"name": "f"}},
        {"best_of": True},
    ],
    ids=lambda fields: "+".join(fields),
)
def test_what_would_change_the_answer_is_refused_by_name(asking: dict[str, object]) -> None:
    with pytest.raises(UnsupportedParameter) as refused:
        CHAT.check(asking)
    assert refused.value.param in asking
    assert str(refused.value.param) in refused.value.message


def test_a_value_of_a_wrong_type_is_not_called_unsupported() -> None:
    with pytest.raises(InvalidRequest) as refused:
        CHAT.check({"user": 1})
    assert refused.value.code == "invalid_value"
