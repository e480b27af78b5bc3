"""Chat with tools: what reaches the model, and calls in answers, whole and streamed."""

from __future__ import annotations

import asyncio
import json
import re
import threading
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import pytest

from support.gateways import CHAT, Gateway, chat, make_gateway
from support.grammars import GrammarCheck
from support.scripted import ByteTokenizer, LineTemplate, Script
from tokenmill.core.delta import Delta, FinishReason, TokenLogprob, Usage
from tokenmill.core.request import GenerateRequest

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}
WEATHER = {"type": "function", "function": {"name": "get_weather", "parameters": PARAMETERS}}
PUT = {"type": "function", "function": {"name": "put"}}
TOOLS = [WEATHER, PUT]
PARIS = '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Paris"}}\n</tool_call>'
NOTHING = '<tool_call>\n{"name": "put", "arguments": {}}\n</tool_call>'


def saying(*answers: str, reason: FinishReason = "stop") -> Script:
    """A model that gives these answers, one a choice, a few characters at a time."""

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for place in range(0, max(map(len, answers)) + 1, 3):
            for index, answer in enumerate(answers):
                if piece := answer[place : place + 3]:
                    yield Delta(index=index, text=piece, token_ids=(place,))
                    await asyncio.sleep(0)
        for index in range(len(answers)):
            yield Delta(index=index, finish_reason=reason, usage=Usage(5, 7))

    return script


def hermes(script: Script) -> Gateway:
    return make_gateway(script, template=LineTemplate("<tool_call>", reads_tools=True))


def asking(**fields: object) -> dict[str, object]:
    return chat(tools=TOOLS, **fields)


def called(*calls: tuple[str, str]) -> list[dict[str, object]]:
    return [
        {"type": "function", "function": {"name": name, "arguments": arguments}} for name, arguments in calls
    ]


def without_ids(calls: Sequence[dict[str, Any]]) -> list[dict[str, object]]:
    assert all(re.fullmatch(r"call_[0-9a-f]{24}", call["id"]) for call in calls)
    assert len({call["id"] for call in calls}) == len(calls)
    return [{key: item for key, item in call.items() if key != "id"} for call in calls]


def accumulated(choices: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What a client builds from the chunks of one choice, checked for what clients rely on."""
    content, calls = "", list[dict[str, Any]]()
    for delta in (choice["delta"] for choice in choices):
        content += delta.get("content") or ""
        for call in delta.get("tool_calls", []):
            if call["index"] == len(calls):
                assert set(call) == {"index", "id", "type", "function"}
                assert call["function"]["arguments"] == ""
                calls.append({"id": call["id"], "type": call["type"], "function": dict(call["function"])})
            else:
                assert call["index"] == len(calls) - 1
                assert set(call) == {"index", "function"}
                assert set(call["function"]) == {"arguments"}
                calls[-1]["function"]["arguments"] += call["function"]["arguments"]
    return {"content": content or None, "tool_calls": calls, "finish_reason": choices[-1]["finish_reason"]}


async def test_a_call_in_a_whole_answer() -> None:
    choice = (await hermes(saying(PARIS)).post(CHAT, asking())).json()["choices"][0]
    calls = choice["message"].pop("tool_calls")
    assert choice["message"] == {"role": "assistant", "content": None, "refusal": None}
    assert without_ids(calls) == called(("get_weather", '{"city": "Paris"}'))
    assert choice["finish_reason"] == "tool_calls"


async def test_a_stream_of_calls_begins_each_with_its_name() -> None:
    gateway = hermes(saying(f"Let me see.\n{PARIS}\n{NOTHING}"))
    choices = [chunk["choices"][0] for chunk in await gateway.stream(CHAT, asking())]
    assert choices[0]["delta"] == {"role": "assistant", "content": None, "refusal": None}
    built = accumulated(choices)
    assert without_ids(built.pop("tool_calls")) == called(("get_weather", '{"city": "Paris"}'), ("put", "{}"))
    assert built == {"content": "Let me see.", "finish_reason": "tool_calls"}
    assert sum("tool_calls" in choice["delta"] for choice in choices) > 5, "arguments come in pieces"
    assert choices[-1]["delta"] == {}


@pytest.mark.parametrize(
    "text",
    [
        PARIS,
        f"a {PARIS} {NOTHING}",
        "plain",
        "<tool_call>{oops}</tool_call>",
        "",
        f"{NOTHING}<tool_call>",
        "<tool_c",
    ],
)
async def test_stream_and_whole_agree(text: str) -> None:
    gateway = hermes(saying(text))
    whole = (await gateway.post(CHAT, asking())).json()["choices"][0]
    built = accumulated([chunk["choices"][0] for chunk in await gateway.stream(CHAT, asking())])
    assert built["content"] == (whole["message"]["content"] or None)
    assert without_ids(built["tool_calls"]) == without_ids(whole["message"].get("tool_calls", []))
    assert built["finish_reason"] == whole["finish_reason"]


async def test_each_choice_is_read_for_itself() -> None:
    gateway = hermes(saying(PARIS, "No call.", f"{NOTHING}\n{NOTHING}"))
    answer = (await gateway.post(CHAT, asking(n=3))).json()
    found = [chunk["choices"][0] for chunk in await gateway.stream(CHAT, asking(n=3))]
    for choice in answer["choices"]:
        built = accumulated([part for part in found if part["index"] == choice["index"]])
        assert built["content"] == choice["message"]["content"]
        assert without_ids(built["tool_calls"]) == without_ids(choice["message"].get("tool_calls", []))
    assert [choice["finish_reason"] for choice in answer["choices"]] == ["tool_calls", "stop", "tool_calls"]


async def test_a_call_that_was_cut_keeps_the_reason_and_what_there_is() -> None:
    gateway = hermes(saying(PARIS[:60], reason="length"))
    choice = (await gateway.post(CHAT, asking())).json()["choices"][0]
    assert without_ids(choice["message"]["tool_calls"]) == called(("get_weather", '{"city": "P'))
    assert choice["finish_reason"] == "length"


def arguments_of(choice: dict[str, Any]) -> list[str]:
    return [call["function"]["arguments"] for call in choice["message"].get("tool_calls", [])]


@pytest.mark.parametrize(
    ("text", "tool_choice", "reason", "arguments"),
    [
        (PARIS[:60], "auto", "length", ['{"city": "P']),
        (PARIS[:60], "required", "length", ['{"city": "P']),
        (f"{NOTHING}\n{PARIS[:60]}", "auto", "length", ["{}", '{"city": "P']),
        (PARIS[:30], "auto", "length", []),
        (f"{NOTHING}\n{PARIS[:30]}", "auto", "length", ["{}"]),
        (PARIS[:5], "required", "length", []),
        ("", "required", "length", []),
        (PARIS.removesuffix("</tool_call>"), "required", "tool_calls", ['{"city": "Paris"}']),
        (PARIS.removesuffix("\n</tool_call>"), "auto", "tool_calls", ['{"city": "Paris"}']),
    ],
)
async def test_only_whole_calls_are_the_reason_of_an_end(
    text: str, tool_choice: str, reason: str, arguments: list[str]
) -> None:
    gateway = hermes(saying(text))  # a stop string was found behind the text
    body = asking(tool_choice=tool_choice, stop=["x"])
    whole = (await gateway.post(CHAT, body)).json()["choices"][0]
    built = accumulated([chunk["choices"][0] for chunk in await gateway.stream(CHAT, body)])
    assert whole["message"]["content"] in (None, "")
    assert built["content"] is None
    assert arguments_of(whole) == arguments_of({"message": built}) == arguments
    assert whole["finish_reason"] == built["finish_reason"] == reason


@pytest.mark.parametrize("fields", [{}, {"tools": TOOLS, "tool_choice": "none"}])
async def test_without_an_offer_text_stays_text_and_free(fields: dict[str, object]) -> None:
    gateway = hermes(saying(PARIS))
    choice = (await gateway.post(CHAT, chat(**fields))).json()["choices"][0]
    assert choice["message"] == {"role": "assistant", "content": PARIS, "refusal": None}
    assert choice["finish_reason"] == "stop"
    request = gateway.replica.requests[0]
    assert request.sampling.grammar is None
    assert b"get_weather" not in bytes(request.prompt_ids)


async def test_log_probabilities_cover_calls_too() -> None:
    pieces = [PARIS[place : place + 5] for place in range(0, len(PARIS), 5)]

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for piece in pieces:
            yield Delta(text=piece, logprobs=(TokenLogprob(1, piece, piece.encode(), -1.0),))
            await asyncio.sleep(0)
        yield Delta(finish_reason="stop", usage=Usage(1, 1))

    gateway = hermes(script)
    whole = (await gateway.post(CHAT, asking(logprobs=True))).json()["choices"][0]
    assert [entry["token"] for entry in whole["logprobs"]["content"]] == pieces
    found = await gateway.stream(CHAT, asking(logprobs=True))
    assert all(chunk["choices"][0]["delta"].get("content") is None for chunk in found)
    entries = [chunk["choices"][0]["logprobs"] for chunk in found]
    assert [entry["token"] for part in entries if part for entry in part["content"]] == pieces


async def test_a_template_without_tools_gets_them_described() -> None:
    gateway = make_gateway(saying("x"))
    fields = chat(tools=[PUT])
    assert (await gateway.post(CHAT, fields)).status_code == 200
    prompt = bytes(gateway.replica.requests[-1].prompt_ids).decode()
    assert prompt.startswith("<s>system: ")
    assert (
        '{"name":"put","parameters":{"type":"object","properties":{},"additionalProperties":false}}' in prompt
    )


async def test_a_template_with_tools_gets_them_as_the_api_has_them() -> None:
    gateway = make_gateway(saying("x"), template=LineTemplate("<tool_call>", reads_tools=True))
    await gateway.post(CHAT, chat(tools=[PUT], chat_template_kwargs={"enable_thinking": False}))
    tools, extra, *_ = bytes(gateway.replica.requests[-1].prompt_ids).decode().split("\n")
    described = json.loads(tools.removeprefix("<s>tools: "))
    assert described == [
        {
            "type": "function",
            "function": {
                "name": "put",
                "description": "",
                "parameters": {"type": "object", "properties": {}, "additionalProperties": False},
            },
        }
    ]
    assert json.loads(extra.removeprefix("extra: ")) == {"enable_thinking": False}


async def test_the_choice_decides_the_grammar() -> None:
    gateway = make_gateway(saying("x"), template=LineTemplate("[TOOL_CALLS]", reads_tools=True))
    check = GrammarCheck({})
    put = '[TOOL_CALLS][{"name": "put", "arguments": {}}]'
    weather = '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "a"}}]'
    for choice, texts in {
        "auto": ["hello", put, weather],
        "required": [put, weather],
    }.items():
        await gateway.post(CHAT, asking(tool_choice=choice, max_tokens=1))
        request = gateway.replica.requests[-1]
        assert request.sampling.grammar is not None
        matching = [text for text in ("hello", put, weather) if check.matches(request.sampling.grammar, text)]
        assert matching == texts
    await gateway.post(CHAT, asking(tool_choice=PUT, max_tokens=1))
    grammar = gateway.replica.requests[-1].sampling.grammar
    assert grammar is not None
    assert [text for text in ("hello", put, weather) if check.matches(grammar, text)] == [put]


async def test_an_answer_in_a_form_is_still_allowed_beside_tools() -> None:
    gateway = make_gateway(saying("x"))
    body = chat(tools=[PUT], response_format={"type": "json_object"})
    assert (await gateway.post(CHAT, body)).status_code == 200
    grammar = gateway.replica.requests[-1].sampling.grammar
    assert grammar is not None
    check = GrammarCheck({})
    assert check.matches(grammar, '{"a": 1}')
    assert check.matches(grammar, NOTHING)
    assert not check.matches(grammar, "hello")


async def test_markers_that_are_tokens_are_made_visible() -> None:
    class Marked(ByteTokenizer):
        special_tokens = {"[TOOL_CALLS]": 257, "[INST]": 258}

    template = LineTemplate("[TOOL_CALLS]", reads_tools=True)
    gateway = make_gateway(saying("x"), template=template, tokenizer=Marked())
    await gateway.post(CHAT, chat(tools=[PUT]))
    await gateway.post(CHAT, chat())
    assert [request.sampling.visible_ids for request in gateway.replica.requests] == [(257,), ()]


async def test_tokenize_counts_tools_as_chat_does(gateway: Gateway) -> None:
    messages = [{"role": "user", "content": "hi"}]
    answer = await gateway.post("/tokenize", {"messages": messages, "tools": [PUT]})
    await gateway.post(CHAT, chat(tools=[PUT]))
    assert answer.json()["tokens"] == list(gateway.replica.requests[-1].prompt_ids)
    refused = await gateway.post("/tokenize", {"prompt": "x", "tools": [PUT]})
    assert refused.json()["error"]["param"] == "tools"


async def test_the_template_is_never_rendered_on_the_event_loop() -> None:
    threads = set[str]()

    class Watched(LineTemplate):
        def render(self, *args: Any, **kwargs: Any) -> str:
            threads.add(threading.current_thread().name)
            return super().render(*args, **kwargs)

    gateway = make_gateway(saying("x"), template=Watched("watched"))
    assert (await gateway.post(CHAT, chat())).status_code == 200
    assert {name.partition("_")[0] for name in threads} == {"tokenizer"}
