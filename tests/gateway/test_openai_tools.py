"""The official client's helpers for tools and parsed answers, over a socket."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncGenerator, Iterator

import openai
import pytest
from openai.types.chat import ChatCompletionMessageParam, ChatCompletionToolParam
from pydantic import BaseModel

from support.gateways import listening_thread, make_gateway
from support.grammars import GrammarCheck
from support.scripted import MODEL, LineTemplate
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.request import GenerateRequest

MESSAGES: list[ChatCompletionMessageParam] = [{"role": "user", "content": "hi"}]
PARAMETERS: dict[str, object] = {
    "type": "object",
    "properties": {"city": {"type": "string"}},
    "required": ["city"],
    "additionalProperties": False,
}
WEATHER: ChatCompletionToolParam = {
    "type": "function",
    "function": {"name": "get_weather", "parameters": PARAMETERS, "strict": True},
}


class City(BaseModel):
    """A city."""

    name: str
    people: int | None


def call(city: str) -> str:
    return f'<tool_call>\n{{"name": "get_weather", "arguments": {{"city": "{city}"}}}}\n</tool_call>'


class Says:
    """A model that says `text` in small pieces, when the request's grammar allows it."""

    def __init__(self) -> None:
        self.text = ""
        self.requests: list[GenerateRequest] = []

    async def __call__(self, request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        self.requests.append(request)
        grammar = request.sampling.grammar
        assert grammar is None or GrammarCheck({}).matches(grammar, self.text)
        for place in range(0, len(self.text), 4):
            yield Delta(text=self.text[place : place + 4], token_ids=(place,))
            await asyncio.sleep(0)
        yield Delta(finish_reason="stop", usage=Usage(5, 7))


@pytest.fixture(scope="module")
def served() -> Iterator[tuple[openai.OpenAI, Says]]:
    says = Says()
    made = make_gateway(says, template=LineTemplate("<tool_call>", reads_tools=True))
    with (
        listening_thread(made) as url,
        openai.OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client,
    ):
        yield client, says


Served = tuple[openai.OpenAI, Says]


def test_a_whole_conversation_with_a_call(served: Served) -> None:
    client, says = served
    says.text = call("Paris")
    answer = client.chat.completions.create(model=MODEL, messages=MESSAGES, tools=[WEATHER]).choices[0]
    assert answer.finish_reason == "tool_calls"
    assert answer.message.content is None
    assert answer.message.tool_calls is not None
    (made,) = answer.message.tool_calls
    assert made.type == "function"
    assert (made.function.name, json.loads(made.function.arguments)) == ("get_weather", {"city": "Paris"})
    says.text = "Sunny."
    follow_up: list[ChatCompletionMessageParam] = [
        *MESSAGES,
        answer.message.model_dump(exclude_none=True),  # type: ignore[list-item]  # as the client's guide does
        {"role": "tool", "tool_call_id": made.id, "content": "sun"},
    ]
    final = client.chat.completions.create(model=MODEL, messages=follow_up, tools=[WEATHER])
    assert final.choices[0].message.content == "Sunny."
    assert final.choices[0].finish_reason == "stop"


def test_the_stream_helper_accumulates_calls(served: Served) -> None:
    client, says = served
    says.text = f"Two:\n{call('Paris')}\n{call('Rome')}"
    done = []
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, tools=[WEATHER]) as stream:
        for event in stream:
            if event.type == "tool_calls.function.arguments.done":
                done.append((event.index, event.name, event.arguments))
        built = stream.get_final_completion().choices[0]
    assert done == [(0, "get_weather", '{"city": "Paris"}'), (1, "get_weather", '{"city": "Rome"}')]
    assert built.message.content == "Two:"
    assert built.message.tool_calls is not None
    assert [each.function.parsed_arguments for each in built.message.tool_calls] == [
        {"city": "Paris"},
        {"city": "Rome"},
    ]
    assert built.finish_reason == "tool_calls"


def test_parse_gives_a_model_of_the_caller(served: Served) -> None:
    client, says = served
    says.text = '{"name": "Paris", "people": 2102650}'
    parsed = client.chat.completions.parse(model=MODEL, messages=MESSAGES, response_format=City)
    assert parsed.choices[0].message.parsed == City(name="Paris", people=2102650)
    with client.chat.completions.stream(model=MODEL, messages=MESSAGES, response_format=City) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == City(name="Paris", people=2102650)


def test_parse_gives_arguments_of_a_function_made_of_a_model(served: Served) -> None:
    client, says = served
    says.text = '<tool_call>\n{"name": "City", "arguments": {"name": "Rome", "people": null}}\n</tool_call>'
    tool = openai.pydantic_function_tool(City)
    parsed = client.chat.completions.parse(
        model=MODEL, messages=MESSAGES, tools=[tool], tool_choice="required", parallel_tool_calls=False
    )
    assert parsed.choices[0].message.tool_calls is not None
    assert parsed.choices[0].message.tool_calls[0].function.parsed_arguments == City(name="Rome", people=None)


def test_the_named_function_is_called(served: Served) -> None:
    client, says = served
    says.text = call("Oslo")
    answer = client.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        tools=[WEATHER],
        tool_choice={"type": "function", "function": {"name": "get_weather"}},
    )
    assert answer.choices[0].finish_reason == "tool_calls"
    with pytest.raises(openai.BadRequestError, match="not among the tools"):
        client.chat.completions.create(
            model=MODEL,
            messages=MESSAGES,
            tools=[WEATHER],
            tool_choice={"type": "function", "function": {"name": "other"}},
        )


def test_extras_of_other_servers_work_from_extra_body(served: Served) -> None:
    client, says = served
    says.text = "yes"
    client.chat.completions.create(
        model=MODEL, messages=MESSAGES, extra_body={"guided_choice": ["yes", "no"]}
    )
    client.completions.create(model=MODEL, prompt="x", extra_body={"structured_outputs": {"regex": "y.*"}})
    assert [request.sampling.grammar is not None for request in says.requests[-2:]] == [True, True]
