"""Messages as templates get them: what is kept, and what is dropped."""

from __future__ import annotations

from tokenmill.gateway.messages import parse_messages

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
    assert parse_messages([result]) == [{"role": "tool", "tool_call_id": "c", "name": "f", "content": "1"}]
