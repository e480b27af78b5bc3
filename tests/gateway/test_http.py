"""What holds for every route: ids, errors, methods, bodies, traces, events."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncGenerator
from typing import Any

import pytest

from support.gateways import CHAT, COMPLETIONS, Gateway, RawCall, chat, completion, make_gateway
from support.waiting import until
from tokenmill.core.bounds import MAX_BODY_BYTES
from tokenmill.core.clock import ManualClock
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.request import GenerateRequest, TraceContext
from tokenmill.gateway.app import Limits

ERROR_KEYS = ["message", "type", "param", "code"]


@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/health", "/metrics", "/nowhere"])
async def test_a_usable_request_id_is_kept_on_every_answer(gateway: Gateway, path: str) -> None:
    response = await gateway.get(path, **{"x-request-id": "order-66/~!"})
    assert response.headers["x-request-id"] == "order-66/~!"
    assert gateway.answered()[-1].request_id == "order-66/~!"


@pytest.mark.parametrize("given", [None, "", "a b", "x" * 129, "tab\tbed"])
async def test_other_request_ids_are_replaced(gateway: Gateway, given: str | None) -> None:
    headers = {} if given is None else {"x-request-id": given}
    response = await gateway.get("/v1/models", **headers)
    assert re.fullmatch(r"req_[0-9a-f]{32}", response.headers["x-request-id"])


async def test_streams_and_errors_carry_the_request_id(gateway: Gateway) -> None:
    for body in (chat(stream=True), chat(n=0)):
        response = await gateway.post(CHAT, body, **{"x-request-id": "me"})
        assert response.headers["x-request-id"] == "me"


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("/", 404, "not_found"),
        ("/v1", 404, "not_found"),
        ("/v1/images/generations", 404, "not_found"),
        ("/v1/chat/completions/", 404, "not_found"),
        ("/v1/models/", 404, "model_not_found"),
        ("/v1/models/other", 404, "model_not_found"),
        ("/health/nothing", 404, "not_found"),
        ("//v1/models", 404, "not_found"),
        (CHAT, 405, "method_not_allowed"),
        ("/tokenize", 405, "method_not_allowed"),
    ],
)
async def test_other_paths_and_methods_get_the_error_object(
    gateway: Gateway, path: str, status: int, code: str
) -> None:
    response = await gateway.get(path)
    assert response.status_code == status
    assert list(response.json()["error"]) == ERROR_KEYS
    assert response.json()["error"]["code"] == code
    assert response.headers["content-type"] == "application/json"


@pytest.mark.parametrize(
    ("method", "path", "allow"), [("PUT", CHAT, "POST"), ("POST", "/health", "GET, HEAD")]
)
async def test_a_wrong_method_names_the_right_ones(
    gateway: Gateway, method: str, path: str, allow: str
) -> None:
    async with gateway.client() as client:
        response = await client.request(method, path)
    assert response.status_code == 405
    assert response.headers["allow"] == allow


@pytest.mark.parametrize("path", ["/v1/models/org/tiny", "/v1/models/org%2Ftiny"])
async def test_model_ids_may_hold_slashes(gateway: Gateway, path: str) -> None:
    listed = (await gateway.get("/v1/models")).json()
    assert (await gateway.get(path)).json() == listed["data"][0]
    assert listed["object"] == "list"
    assert set(listed["data"][0]) >= {"id", "object", "created", "owned_by"}


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({}, 200),
        ({"content-type": "application/json"}, 200),
        ({"content-type": "application/json; charset=utf-8"}, 200),
        ({"content-type": "application/vnd.api+json"}, 200),
        ({"content-type": "text/plain"}, 415),
        ({"content-type": "multipart/form-data; boundary=x"}, 415),
        ({"content-type": "application/x-www-form-urlencoded"}, 415),
        ({"content-encoding": "identity"}, 200),
        ({"content-encoding": "gzip"}, 415),
    ],
)
async def test_kinds_of_bodies(gateway: Gateway, headers: dict[str, str], status: int) -> None:
    async with gateway.client() as client:
        response = await client.post(CHAT, content=json.dumps(chat()), headers=headers)
    assert response.status_code == status


async def test_a_body_announced_as_too_large_is_refused_unread(gateway: Gateway) -> None:
    call = RawCall(gateway.app, CHAT, b"", headers=[(b"content-length", b"%d" % (MAX_BODY_BYTES + 1))])
    await call.run()
    assert call.sent[0]["status"] == 413
    assert not call._body_given


async def test_a_body_that_grows_too_large_is_refused(gateway: Gateway) -> None:
    piece = b" " * (1 << 20)

    async def receive() -> dict[str, object]:
        pieces.append(1)
        return {"type": "http.request", "body": piece, "more_body": True}

    pieces: list[int] = []
    call = RawCall(gateway.app, CHAT, b"")
    call._receive = receive  # type: ignore[method-assign]
    await call.run()
    assert call.sent[0]["status"] == 413
    assert len(pieces) == MAX_BODY_BYTES // len(piece) + 1


async def test_a_body_of_exactly_the_bound_is_read(gateway: Gateway) -> None:
    body = json.dumps(chat()).encode()
    call = RawCall(gateway.app, CHAT, body + b" " * (MAX_BODY_BYTES - len(body)))
    await call.run()
    assert call.sent[0]["status"] == 200


async def test_a_body_that_does_not_come_is_a_408() -> None:
    gateway = make_gateway(limits=Limits(body_s=0.01))

    async def receive() -> dict[str, object]:
        await asyncio.Event().wait()
        return {}

    call = RawCall(gateway.app, CHAT, b"")
    call._receive = receive  # type: ignore[method-assign]
    await call.run()
    assert call.sent[0]["status"] == 408
    assert (b"connection", b"close") in call.sent[0]["headers"]


@pytest.mark.parametrize(
    ("traceparent", "expected"),
    [
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-01", TraceContext("a" * 32, "b" * 16, True)),
        ("00-" + "a" * 32 + "-" + "b" * 16 + "-00", TraceContext("a" * 32, "b" * 16, False)),
        ("01-" + "a" * 32 + "-" + "b" * 16 + "-01-more", TraceContext("a" * 32, "b" * 16, True)),
        ("ff-" + "a" * 32 + "-" + "b" * 16 + "-01", None),
        ("00-" + "0" * 32 + "-" + "b" * 16 + "-01", None),
        ("00-" + "a" * 32 + "-" + "0" * 16 + "-01", None),
        ("00-" + "A" * 32 + "-" + "b" * 16 + "-01", None),
        ("nonsense", None),
    ],
)
async def test_trace_context(gateway: Gateway, traceparent: str, expected: TraceContext | None) -> None:
    await gateway.post(CHAT, chat(), traceparent=traceparent)
    assert gateway.replica.requests[0].trace == expected
    assert gateway.answered()[-1].trace_id == (expected.trace_id if expected else "")


async def test_every_request_is_one_event_under_its_routes_pattern(gateway: Gateway) -> None:
    await gateway.post(CHAT, chat())
    await gateway.post(COMPLETIONS, completion(n=99))
    await gateway.get("/v1/models/org/tiny")
    await gateway.get("/secret-" + "x" * 100)
    await gateway.get(CHAT)
    assert [(event.route, event.status, event.error_code) for event in gateway.answered()] == [
        (CHAT, 200, ""),
        (COMPLETIONS, 400, "invalid_value"),
        ("/v1/models/{id}", 200, ""),
        ("other", 404, "not_found"),
        (CHAT, 405, "method_not_allowed"),
    ]


@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_counted_before_its_last_byte(gateway: Gateway, stream: bool) -> None:
    counts: list[int] = []

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body" and not message["more_body"]:
            counts.append(len(gateway.answered()))

    call = RawCall(gateway.app, CHAT, json.dumps(chat(stream=stream)).encode())
    call._send = send  # type: ignore[method-assign]
    await call.run()
    assert counts == [1]


async def test_times_of_an_answer_come_from_the_clock() -> None:
    clock, go_on = ManualClock(), asyncio.Event()

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        clock.advance(2)
        yield Delta(text="a")
        await go_on.wait()
        clock.advance(3)
        yield Delta(text="b", finish_reason="stop", usage=Usage(1, 2))

    gateway = make_gateway(script, clock=clock)
    call = RawCall(gateway.app, CHAT, json.dumps(chat(stream=True)).encode())
    running = asyncio.create_task(call.run())
    await until(lambda: len(call.sent) == 2)
    go_on.set()
    await running
    whole = await gateway.post(CHAT, chat())
    streamed, plain = gateway.answered()
    assert (streamed.first_byte_s, streamed.seconds, streamed.output_tokens) == (2, 5, 2)
    assert (plain.first_byte_s, plain.seconds, plain.output_tokens) == (None, 5, 2)
    assert whole.headers["openai-processing-ms"] == "5000"


async def test_context_that_cannot_fit_is_a_400_that_tells_the_numbers(gateway: Gateway) -> None:
    response = await gateway.post(CHAT, chat("x" * 600))
    error = response.json()["error"]
    assert (response.status_code, error["code"], error["param"]) == (
        400,
        "context_length_exceeded",
        "messages",
    )
    assert "512" in error["message"]
    assert "620" in error["message"]
    assert gateway.replica.requests == []
