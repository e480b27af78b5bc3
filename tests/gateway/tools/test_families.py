"""How tools reach a model: the family its template shows, and what becomes of messages."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenmill.gateway.tools import mistral
from tokenmill.gateway.tools.declared import Offer, Tool
from tokenmill.gateway.tools.families import (
    GENERIC,
    HERMES,
    LLAMA3,
    MISTRAL_LISTED,
    MISTRAL_NAMED,
    PHI4,
    Family,
    choose_family,
)

PUT = Tool("put", "Puts.", {"type": "object", "properties": {"n": {"type": "integer"}}}, strict=True)
CALL = {"id": "call_0123456789", "type": "function", "function": {"name": "put", "arguments": '{"n": 1}'}}
TALK: list[dict[str, object]] = [
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "one"},
    {"role": "assistant", "content": "", "tool_calls": [CALL, CALL]},
    {"role": "tool", "content": "a", "tool_call_id": "call_0123456789"},
    {"role": "tool", "content": "b", "tool_call_id": "abcdefghi"},
    {"role": "user", "content": "two"},
]


@pytest.mark.parametrize(
    ("template", "reads_tools", "family"),
    [
        ("{{ '<tool_call>' }}{{ tools }}", True, HERMES),
        ("{{ '<tool_call>' }}", False, GENERIC),
        ("{{ '<tool_call>\\n<function=' }}{{ tools }}", True, GENERIC),
        ('{"name": function name, "parameters": dictionary of', True, LLAMA3),
        ("{{ '<|python_tag|>' }}", True, LLAMA3),
        ("{{ '[TOOL_CALLS]' + tools }}", True, MISTRAL_LISTED),
        ("{{ '[TOOL_CALLS]' + name + '[ARGS]' }}", True, MISTRAL_NAMED),
        ("{{ '<|tool|>' + message['tools'] + '<|/tool|>' }}", False, PHI4),
        ("{{ tools }}", True, GENERIC),
        ("{{ messages }}", False, GENERIC),
        ("", False, GENERIC),
    ],
)
def test_the_template_shows_the_family(template: str, reads_tools: bool, family: Family) -> None:
    assert choose_family(template, reads_tools) is family


def test_templates_that_read_tools_get_them_and_the_messages_as_they_are() -> None:
    messages, tools = HERMES.prepare(TALK, [PUT])
    assert messages == TALK
    function = {"name": "put", "description": "Puts.", "parameters": PUT.parameters}
    assert tools == [{"type": "function", "function": function}]


def test_mistral_templates_get_ids_of_nine_characters() -> None:
    messages, _ = MISTRAL_LISTED.prepare(TALK, [PUT])
    called, answered, other = messages[2], messages[3], messages[4]
    ids = [call["id"] for call in called["tool_calls"]]  # type: ignore[attr-defined]  # a list of objects
    assert ids == [answered["tool_call_id"]] * 2, "a call and its result keep one id"
    assert len(ids[0]) == 9
    assert ids[0].isalnum()
    assert other["tool_call_id"] == "abcdefghi" == mistral.short_id("abcdefghi")
    assert TALK[3]["tool_call_id"] == "call_0123456789", "the client's messages are not changed"


def test_phi_reads_tools_from_the_system_message() -> None:
    text = '[{"name":"put","description":"Puts.","parameters":{"type":"object","properties":{"n":{"type":"integer"}}}}]'
    messages, tools = PHI4.prepare(TALK, [PUT])
    assert (messages[0], tools) == ({"role": "system", "content": "Be brief.", "tools": text}, None)
    messages, _ = PHI4.prepare(TALK[1:], [PUT])
    assert messages[0] == {"role": "system", "content": "", "tools": text}
    call = '{"name": "put", "arguments": {"n": 1}}'
    assert messages[2] == {"role": "assistant", "content": f"<|tool_call|>[{call}, {call}]<|/tool_call|>"}
    assert PHI4.prepare(TALK[:2], [])[0] == TALK[:2]


def test_other_templates_meet_plain_text_in_turns() -> None:
    messages, tools = GENERIC.prepare(TALK, [PUT])
    assert tools is None
    call = '<tool_call>\n{"name": "put", "arguments": {"n": 1}}\n</tool_call>'
    results = "<tool_response>\na\n</tool_response>\n<tool_response>\nb\n</tool_response>"
    assert messages[1:] == [
        {"role": "user", "content": "one"},
        {"role": "assistant", "content": f"{call}\n{call}"},
        {"role": "user", "content": f"{results}\ntwo"},
    ]
    system = str(messages[0]["content"])
    assert system.startswith("Be brief.\n\n")
    described = '{"name":"put","parameters":{"type":"object","properties":{"n":{"type":"integer"}}},"description":"Puts."}'
    assert described in system


def test_without_tools_nothing_is_explained() -> None:
    plain = [{"role": "user", "content": "one"}, {"role": "user", "content": "two"}]
    assert GENERIC.prepare(plain, []) == (plain, None)
    assert GENERIC.prepare(plain, [PUT])[0][0]["role"] == "system"


@pytest.mark.parametrize(
    ("family", "unsaid", "asked", "ruled_out"),
    [
        (HERMES, True, True, False),
        (GENERIC, False, True, False),
        (replace(LLAMA3, several_calls="never"), False, False, False),
    ],
)
def test_one_call_or_several(family: Family, unsaid: bool, asked: bool, ruled_out: bool) -> None:
    given = [
        family.limit(Offer([PUT], "auto", parallel=parallel)).parallel for parallel in (None, True, False)
    ]
    assert given == [unsaid, asked, ruled_out]
