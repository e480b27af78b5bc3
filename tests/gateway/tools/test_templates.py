"""Whole conversations with tools through templates that use of Jinja what the families' own use."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from support.gateways import make_gateway
from tokenmill.core.clock import ManualClock
from tokenmill.gateway.chat_prompt import Conversation, chat_prompt
from tokenmill.gateway.messages import parse_messages
from tokenmill.gateway.tools import generic, hermes, llama3, mistral, phi4
from tokenmill.gateway.tools.declared import Tool
from tokenmill.gateway.tools.families import family_of
from tokenmill.gateway.tools.syntax import Syntax
from tokenmill.models.chat import ChatTemplate

FOLDER = Path(__file__).parents[2] / "support" / "chat_templates"
FAMILIES: dict[str, Syntax] = {
    "qwen25": hermes.SYNTAX,
    "qwen3": hermes.SYNTAX,
    "llama31": llama3.SYNTAX,
    "mistral3": mistral.LISTED,
    "mistral7": mistral.NAMED,
    "phi4mini": phi4.SYNTAX,
    "gemma3": generic.SYNTAX,
    "phi3": generic.SYNTAX,
    "smollm3": generic.SYNTAX,
}
PUT = Tool(
    "put_down",
    "Puts it down.",
    {"type": "object", "properties": {"number": {"type": "integer"}}},
    strict=False,
)


def template(name: str) -> ChatTemplate:
    return ChatTemplate((FOLDER / f"{name}.jinja").read_text(), clock=ManualClock(0))


TALK: list[dict[str, object]] = [
    {"role": "user", "content": "first words"},
    {"role": "assistant", "content": "an answer"},
    {"role": "user", "content": "last words"},
]


def prompt_text(found: ChatTemplate, messages: object, tools: Sequence[Tool] = ()) -> str:
    served = replace(make_gateway().served, chat_template=found, max_model_len=100_000)
    return chat_prompt(served, Conversation(parse_messages(messages), tools)).text


@pytest.mark.parametrize("name", sorted(path.stem for path in FOLDER.glob("*.jinja")))
@pytest.mark.parametrize("messages", [TALK, TALK[:1]], ids=["talk", "question"])
def test_without_tools_the_prompt_is_that_of_a_plain_chat(
    name: str, messages: list[dict[str, object]]
) -> None:
    found = template(name)
    assert prompt_text(found, messages) == found.render(messages)


@pytest.mark.parametrize("name", ["gemma3", "mistral7", "qwen25", "phi4mini"])
def test_parts_reach_the_template_as_it_reads_them(name: str) -> None:
    found = template(name)
    parts = [{"type": "text", "text": "one "}, {"type": "text", "text": " two"}]
    messages = [{"role": "system", "content": parts[:1]}, {"role": "user", "content": parts}]
    assert prompt_text(found, messages) == found.render(messages)


def test_parts_are_joined_where_text_is_added_to_them() -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    messages = [{"role": "system", "content": parts}, {"role": "user", "content": "hi"}]
    assert "one\ntwo\n\nYou can call functions" in prompt_text(template("gemma3"), messages, [PUT])


def test_a_template_for_tools_alone_is_not_used_without_any() -> None:
    found = ChatTemplate("plain", tool_source="<tool_call>{{ tools | tojson }}")
    assert prompt_text(found, TALK) == "plain"
    assert "Puts it down." in prompt_text(found, TALK, [PUT])


@pytest.mark.parametrize("name", FAMILIES)
def test_a_conversation_keeps_its_tools_calls_and_results(name: str) -> None:
    found = template(name)
    family = family_of(found)
    assert family.syntax == FAMILIES[name]
    call = {
        "id": "call_0123456789",
        "type": "function",
        "function": {"name": "put_down", "arguments": '{"number": 77}'},
    }
    messages, tools = family.prepare(
        parse_messages(
            [
                {"role": "user", "content": "first words"},
                {"role": "assistant", "content": None, "tool_calls": [call]},
                {"role": "tool", "content": "what came back", "tool_call_id": "call_0123456789"},
                {"role": "assistant", "content": "an answer"},
                {"role": "user", "content": "last words"},
            ]
        ),
        [PUT],
    )
    text = found.render(messages, tools=tools)
    for part in ("first words", "Puts it down.", "77", "what came back", "an answer", "last words"):
        assert part in text
    assert text.count("put_down") >= 2, "described and called"


def test_the_template_is_asked_whether_it_takes_several_calls() -> None:
    found = {
        name: family_of(template(name)).several_calls for name in ("llama31", "qwen25", "mistral7", "gemma3")
    }
    assert found == {"llama31": "never", "qwen25": "usual", "mistral7": "usual", "gemma3": "if asked"}
