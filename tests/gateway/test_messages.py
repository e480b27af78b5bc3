"""Messages as templates get them: what is kept, and what is dropped."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import InvalidRequest
from tokenmill.gateway.messages import flat_content, parse_messages

CALL = {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}


def test_what_an_answer_had_may_be_sent_back() -> None:
    answer = {
        "role": "assistant",
        "content": None,
        "reasoning_content": "Hm.",
        "refusal": None,
        "annotations": [],
        "audio": None,
        "function_call": None,
        "tool_calls": [CALL | {"index": 0}],
    }
    assert parse_messages([answer]) == [
        {"role": "assistant", "content": "", "reasoning_content": "Hm.", "tool_calls": [CALL]}
    ]


def test_no_calls_are_as_none() -> None:
    found = parse_messages([{"role": "assistant", "content": "a", "tool_calls": []}])
    assert found == [{"role": "assistant", "content": "a"}]


def test_results_keep_their_id_and_name() -> None:
    result = {"role": "tool", "tool_call_id": "c", "name": "f", "content": [{"type": "text", "text": "1"}]}
    assert parse_messages([result]) == [result]


def test_parts_stay_parts_without_hints() -> None:
    part = {"type": "text", "text": "1"}
    hinted = {"role": "user", "content": [part | {"cache_control": {"type": "ephemeral"}}, part]}
    assert parse_messages([hinted]) == [{"role": "user", "content": [part, part]}]
    refused = {"role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    assert parse_messages([refused]) == [refused]
    assert flat_content(refused) == "No."
    assert flat_content({"content": [part, part]}) == "1\n1"


@pytest.mark.parametrize(
    ("message", "param"),
    [
        ({"role": "assistant"}, "messages[0].content"),
        ({"role": "assistant", "content": None, "name": "a"}, "messages[0].content"),
        ({"role": "user", "content": []}, "messages[0].content"),
        (
            {"role": "user", "content": [{"type": "text", "text": "a", "mood": 1}]},
            "messages[0].content[0].mood",
        ),
        ({"role": "user", "content": [{"type": "refusal", "refusal": "a"}]}, "messages[0].content[0].type"),
        ({"role": "user", "content": None, "tool_calls": []}, "messages[0].content"),
    ],
)
def test_nothing_in_a_message_is_passed_over(message: dict[str, object], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        parse_messages([message])
    assert caught.value.param == param


def test_a_refusal_alone_is_a_message() -> None:
    assert parse_messages([{"role": "assistant", "content": None, "refusal": "No."}]) == [
        {"role": "assistant", "content": ""}
    ]
