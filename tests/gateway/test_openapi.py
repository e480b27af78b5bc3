"""The OpenAPI document is true: no request drawn from it, valid or not, makes a server error."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import hypothesis
import jsonschema
import pytest
import schemathesis
from schemathesis import GenerationMode
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import response_schema_conformance

from support.gateways import CHAT, COMPLETIONS, Gateway, chat, completion, listening_thread, make_gateway
from tokenmill.gateway.app import ROUTES
from tokenmill.gateway.openapi import BODIES, document

Document = dict[str, Any]

SERVED = make_gateway().served
PATHS: Document = document(SERVED)["paths"]  # type: ignore[assignment]  # plain data
_MESSAGES: Mapping[str, object] = {"messages": [{"role": "user", "content": "hi"}]}
_PROMPT: Mapping[str, object] = {"prompt": "hi"}
_TOOLS: Mapping[str, object] = {"tools": [{"type": "function", "function": {"name": "f"}}]}
# What a field needs beside it to mean anything, on a route or on all.
COMPANIONS: Mapping[str, Mapping[str, object]] = {
    "top_logprobs": {"logprobs": True},
    "stream_options": {"stream": True},
    "tool_choice": _TOOLS,
    "parallel_tool_calls": _TOOLS,
    **{f"/tokenize {name}": _PROMPT for name in ("add_special_tokens", "model", "return_token_strs")},
    **{f"/tokenize {name}": _MESSAGES for name in ("add_generation_prompt", "chat_template_kwargs", "tools")},
}


@pytest.fixture(scope="module")
def url() -> Iterator[str]:
    with listening_thread(make_gateway()) as found:
        yield found


def statuses(drawn: Any, check: Callable[[Any], Any], examples: int) -> set[int]:
    """Sends requests drawn from a strategy, each checked; the statuses they got."""
    found: set[int] = set()

    @hypothesis.settings(
        max_examples=examples,
        derandomize=True,
        deadline=None,
        database=None,
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    @hypothesis.given(drawn)
    def run(case: Any) -> None:
        found.add(check(case).status_code)

    run()
    return found


def operation(document: Document, path: str, method: str) -> Any:
    return schemathesis.openapi.from_dict(document)[path][method]


def test_every_route_is_described() -> None:
    routes = {(path.replace(":path", ""), method.lower()) for method, path, _ in ROUTES}
    assert routes == {(path, method) for path, methods in PATHS.items() for method in methods}


@pytest.mark.parametrize("mode", [GenerationMode.POSITIVE, GenerationMode.NEGATIVE], ids=["valid", "invalid"])
@pytest.mark.parametrize(
    ("path", "method"), [(path, method) for path, methods in PATHS.items() for method in methods]
)
def test_no_request_makes_a_server_error(url: str, path: str, method: str, mode: GenerationMode) -> None:
    def check(case: Any) -> Any:
        return case.call_and_validate(base_url=url, checks=[not_a_server_error, response_schema_conformance])

    drawn = operation(document(SERVED), path, method).as_strategy(generation_mode=mode)
    if mode is GenerationMode.POSITIVE or method == "post":
        assert statuses(drawn, check, 40)
    else:
        with contextlib.suppress(hypothesis.errors.Unsatisfiable):  # nothing in it to get wrong
            statuses(drawn, check, 40)


@pytest.mark.parametrize(
    ("path", "field"),
    [(path, field) for path, body in BODIES.items() for field in sorted(body.taken.implemented)],
)
def test_each_field_is_taken_as_described(url: str, path: str, field: str) -> None:
    described: Document = document(SERVED)
    schema = described["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    beside = COMPANIONS.get(f"{path} {field}", COMPANIONS.get(field, {}))
    schema["required"] = sorted({*schema["required"], field} - beside.keys())
    schema["properties"] = {name: schema["properties"][name] for name in schema["required"]}

    def check(case: Any) -> Any:
        case.body = {**case.body, **beside}
        return case.call_and_validate(base_url=url, checks=[not_a_server_error, response_schema_conformance])

    drawn = operation(described, path, "post").as_strategy(generation_mode=GenerationMode.POSITIVE)
    assert 200 in statuses(drawn, check, 30)


ANSWER: Document = {
    "role": "assistant",
    "content": "a",
    "reasoning_content": "t",
    "refusal": None,
    "annotations": [],
}
CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}
HI = {"role": "user", "content": "hi"}
TAKEN: list[tuple[str, dict[str, object]]] = [
    (CHAT, chat(user="me", metadata={"a": "b"}, store=False, best_of=1)),
    (CHAT, chat(logprobs=False, max_tokens=1, top_logprobs=None)),
    (CHAT, chat() | {"messages": [HI, ANSWER, HI]}),
    (CHAT, chat() | {"messages": [HI, {"role": "assistant", "content": None, "tool_calls": [CALL]}]}),
    (CHAT, chat() | {"messages": [HI, {"role": "assistant", "refusal": "No."}]}),
    (CHAT, chat() | {"messages": [{"role": "user", "content": [{"type": "text", "text": "a"}]}]}),
    (COMPLETIONS, completion(logprobs=3, max_tokens=0, echo=True)),
    (COMPLETIONS, completion(logprobs=False, suffix="", user="me")),
]
REFUSED: list[tuple[str, dict[str, object]]] = [
    (CHAT, chat(logprobs=3)),
    (CHAT, chat(max_tokens=0)),
    (CHAT, chat(user=1)),
    (CHAT, chat(store=True)),
    (CHAT, chat(metadata={"a": 1})),
    (CHAT, chat() | {"messages": [HI, {"role": "assistant"}]}),
    (CHAT, chat() | {"messages": [{"role": "user", "content": []}]}),
    (CHAT, chat() | {"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "x": 1}]}]}),
    (COMPLETIONS, completion(logprobs=True)),
    (COMPLETIONS, completion(suffix="x")),
]


@pytest.mark.parametrize(
    ("path", "body", "taken"),
    [*((path, body, True) for path, body in TAKEN), *((path, body, False) for path, body in REFUSED)],
)
async def test_document_and_server_agree(
    gateway: Gateway, path: str, body: dict[str, object], taken: bool
) -> None:
    schema = PATHS[path]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert jsonschema.Draft202012Validator(schema).is_valid(body) == taken
    assert (await gateway.post(path, body)).status_code == (200 if taken else 400)
