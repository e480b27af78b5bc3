"""Bad input over a socket: each case gets its own 4xx, and the next good request the same bytes as ever."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import httpx2
import pytest

from support.bad_forms import FORM_CASES, HISTORY_CASES, TOOL_CASES
from support.bad_inputs import CHAT_CASES, COMPLETION_CASES, EMBEDDING_CASES, RAW_CASES
from support.gateways import CHAT, COMPLETIONS, EMBEDDINGS, Gateway, chat, listening_thread, make_gateway
from tokenmill.core.bounds import MAX_BODY_BYTES, MAX_JSON_DEPTH

TOOLS_AND_FORMS = TOOL_CASES | HISTORY_CASES | FORM_CASES


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[Gateway, httpx2.Client]]:
    made = make_gateway()
    with listening_thread(made) as url, httpx2.Client(base_url=url, timeout=20) as client:
        yield made, client


def canary(client: httpx2.Client) -> tuple[int, Any]:
    """What must not change: all of an answer but its id."""
    response = client.post(CHAT, json=chat("canary", seed=1, temperature=0))
    return response.status_code, {**response.json(), "id": ""}


@pytest.mark.parametrize("name", CHAT_CASES)
def test_chat(served: tuple[Gateway, httpx2.Client], name: str) -> None:
    body, code, param = CHAT_CASES[name]
    check(served, CHAT, json.dumps(body).encode(), code, param)


@pytest.mark.parametrize("name", TOOLS_AND_FORMS)
def test_tools_and_forms(served: tuple[Gateway, httpx2.Client], name: str) -> None:
    body, code, param = TOOLS_AND_FORMS[name]
    check(served, CHAT, json.dumps(body).encode(), code, param)


@pytest.mark.parametrize("name", COMPLETION_CASES)
def test_completions(served: tuple[Gateway, httpx2.Client], name: str) -> None:
    body, code, param = COMPLETION_CASES[name]
    check(served, COMPLETIONS, json.dumps(body).encode(), code, param)


@pytest.mark.parametrize("name", EMBEDDING_CASES)
def test_embeddings(served: tuple[Gateway, httpx2.Client], name: str) -> None:
    body, code, param = EMBEDDING_CASES[name]
    check(served, EMBEDDINGS, json.dumps(body).encode(), code, param)


@pytest.mark.parametrize("name", RAW_CASES)
def test_raw_bodies(served: tuple[Gateway, httpx2.Client], name: str) -> None:
    body, code = RAW_CASES[name]
    check(served, CHAT, body, code, None)


def check(
    served: tuple[Gateway, httpx2.Client], path: str, body: bytes, code: str, param: str | None
) -> None:
    gateway, client = served
    before = canary(client)
    response = client.post(path, content=body)
    assert response.status_code == (404 if code == "model_not_found" else 400), response.text
    error = response.json()["error"]
    assert list(error) == ["message", "type", "param", "code"]
    assert (error["code"], error["param"], error["type"]) == (code, param, "invalid_request_error")
    assert len(error["message"]) < 400
    assert response.headers["x-should-retry"] == "false"
    assert canary(client) == before
    assert before[0] == 200
    assert gateway.replica.running == {}


def test_a_body_too_large_is_refused_and_the_connection_lives_on(
    served: tuple[Gateway, httpx2.Client],
) -> None:
    _, client = served
    before = canary(client)
    for content in (b" " * (MAX_BODY_BYTES + 1), iter([b" " * (1 << 20)] * 9)):
        response = client.post(CHAT, content=content)
        assert (response.status_code, response.json()["error"]["code"]) == (413, "payload_too_large")
        assert canary(client) == before


def test_as_deep_as_allowed_is_not_too_deep(served: tuple[Gateway, httpx2.Client]) -> None:
    depth = MAX_JSON_DEPTH
    body = b'{"a":' * depth + b"1" + b"}" * depth
    response = served[1].post(CHAT, content=body)
    assert response.json()["error"]["code"] != "invalid_json", "it fails for what it says, not for its depth"


def test_brackets_in_text_are_not_depth(served: tuple[Gateway, httpx2.Client]) -> None:
    assert served[1].post(CHAT, json=chat("[" * 200)).status_code == 200


def test_the_nearest_name_is_suggested(served: tuple[Gateway, httpx2.Client]) -> None:
    response = served[1].post(CHAT, json=chat(temprature=1))
    assert "did you mean temperature?" in response.json()["error"]["message"]


def test_of_equal_keys_the_last_counts(served: tuple[Gateway, httpx2.Client]) -> None:
    body = json.dumps(chat())[:-1] + ', "max_tokens": 1, "max_tokens": 3}'
    response = served[1].post(CHAT, content=body)
    assert response.json()["usage"]["completion_tokens"] == 3
