"""Tools and forms of the answer with the real model: what comes back follows its schema."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Literal

import httpx2
import jsonschema
import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from support.bad_forms import FORM_CASES, HISTORY_CASES, TOOL_CASES
from support.served import Served

QUESTION: list[ChatCompletionMessageParam] = [{"role": "user", "content": "What is the weather in Paris?"}]
WEATHER_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["celsius", "fahrenheit"]}},
    "required": ["city", "unit"],
}
ALERT_SCHEMA: dict[str, object] = {
    "type": "object",
    "properties": {"loud": {"type": "boolean"}, "level": {"enum": [1, 2, 3]}},
    "required": ["loud", "level"],
    "additionalProperties": False,
}
TOOLS: list[ChatCompletionToolParam] = [
    {"type": "function", "function": {"name": "get_weather", "parameters": WEATHER_SCHEMA}},
    {"type": "function", "function": {"name": "alert", "parameters": ALERT_SCHEMA, "strict": True}},
]
SCHEMAS = {"get_weather": WEATHER_SCHEMA, "alert": ALERT_SCHEMA}


class Weather(BaseModel):
    """The weather of a place."""

    place: Literal["Paris", "Rome"]
    sunny: bool


@pytest.fixture(scope="module")
def client(server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


def test_a_required_call_follows_its_schema(server: Served, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=QUESTION, tools=TOOLS, tool_choice="required", temperature=0
    )
    choice = answer.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.type == "function"
    jsonschema.validate(json.loads(call.function.arguments), SCHEMAS[call.function.name])


def test_the_named_function_is_called_however_unlikely(server: Served, client: openai.OpenAI) -> None:
    with client.chat.completions.stream(
        model=server.model,
        messages=QUESTION,
        tools=TOOLS,
        tool_choice={"type": "function", "function": {"name": "alert"}},
        temperature=2,
        seed=1,
    ) as stream:
        choice = stream.get_final_completion().choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.tool_calls is not None
    (call,) = choice.message.tool_calls
    assert call.function.name == "alert"
    jsonschema.validate(json.loads(call.function.arguments), ALERT_SCHEMA)


def test_the_model_may_answer_in_words(server: Served, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=server.model, messages=QUESTION, tools=TOOLS, temperature=0, max_tokens=8
    )
    assert answer.choices[0].message.content
    assert answer.choices[0].message.tool_calls is None


def test_an_answer_parses_as_the_model_that_was_given(server: Served, client: openai.OpenAI) -> None:
    parsed = client.chat.completions.parse(
        model=server.model, messages=QUESTION, response_format=Weather, temperature=1, seed=1
    )
    assert isinstance(parsed.choices[0].message.parsed, Weather)
    assert parsed.choices[0].finish_reason == "stop"


def test_json_mode_gives_an_object(server: Served, client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(
        model=server.model,
        messages=[{"role": "user", "content": "Describe France as short JSON."}],
        response_format={"type": "json_object"},
        temperature=0,
    )
    assert isinstance(json.loads(answer.choices[0].message.content or ""), dict)


def test_a_choice_is_one_of_the_given(server: Served, client: openai.OpenAI) -> None:
    answer = client.completions.create(
        model=server.model,
        prompt="Is Paris in France?",
        temperature=2,
        seed=1,
        extra_body={"guided_choice": ["certainly", "by no means"]},
    )
    assert answer.choices[0].text in ("certainly", "by no means")
    assert answer.choices[0].finish_reason == "stop"


def test_a_schema_that_nothing_can_enforce_is_the_callers_fault(
    server: Served, client: openai.OpenAI
) -> None:
    schema = {"type": "string", "pattern": "(?=look)ahead"}
    for stream in (False, True):
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=server.model, messages=QUESTION, stream=stream, extra_body={"guided_json": schema}
            )
        assert refused.value.status_code == 400


def test_bad_requests_are_refused_like_before_the_engine(server: Served) -> None:
    with httpx2.Client(base_url=server.url, timeout=60) as client:
        for name, (body, code, param) in (TOOL_CASES | HISTORY_CASES | FORM_CASES).items():
            response = client.post("/v1/chat/completions", json=body)
            error = response.json()["error"]
            assert (response.status_code, error["code"], error["param"]) == (400, code, param), name
