import json

import pytest

from tokenmill.bench.record import Record, StreamReader, read_whole


def chunk(delta: dict[str, object], usage: int | None = None, finish: str | None = None) -> bytes:
    body: dict[str, object] = {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}
    if usage is not None:
        body["usage"] = {"prompt_tokens": 5, "completion_tokens": usage}
    return json.dumps(body).encode()


def read(*frames: tuple[float, bytes], end: float = 9.0) -> Record:
    record = Record(index=0, scheduled=0.0)
    reader = StreamReader(record, keep_text=True)
    for at, data in frames:
        reader.frame(data, at)
    reader.finish(end)
    return record


def test_a_role_without_text_is_a_chunk_but_no_token() -> None:
    record = read(
        (1.0, chunk({"role": "assistant", "content": ""})),
        (2.0, chunk({"content": "a"})),
        (2.5, chunk({"content": "b"})),
        (3.5, chunk({"content": "c"})),
        (3.5, chunk({}, finish="stop")),
        (3.6, b'{"choices": [], "usage": {"prompt_tokens": 5, "completion_tokens": 4}}'),
        (3.7, b"[DONE]"),
    )
    assert (record.first_chunk, record.first_token, record.first_content, record.end) == (1.0, 2.0, 2.0, 3.7)
    assert record.gaps == [0.5, 1.0]
    assert record.gap_tokens == []
    assert (record.text, record.finish_reason) == ("abc", "stop")
    assert (record.prompt_tokens, record.completion_tokens, record.tokens) == (5, 4, 4)
    assert record.ok


@pytest.mark.parametrize(
    "other", [{"reasoning_content": "hm"}, {"reasoning": "hm"}, {"tool_calls": [{"index": 0}]}]
)
def test_other_channels_count_as_first_token_but_not_as_content(other: dict[str, object]) -> None:
    record = read(
        (1.0, chunk(other)), (2.0, chunk({"content": "a"})), (2.0, chunk({}, finish="stop")), (2.0, b"[DONE]")
    )
    assert (record.first_token, record.first_content, record.gaps) == (1.0, 2.0, [1.0])


def test_running_counts_say_how_many_tokens_each_frame_had() -> None:
    record = read(
        (1.0, chunk({"content": "ab"}, usage=2)),
        (2.0, chunk({"content": "c"}, usage=3)),
        (5.0, chunk({"content": "defg"}, usage=7)),
        (5.0, chunk({}, usage=7, finish="length")),
        (5.0, b"[DONE]"),
    )
    assert (record.gaps, record.gap_tokens, record.tokens) == ([1.0, 3.0], [1, 4], 7)


def test_a_count_in_the_last_frame_alone_says_nothing_of_gaps() -> None:
    record = read((1.0, chunk({"content": "a"})), (2.0, chunk({"content": "b"}, usage=9)))
    assert (record.gaps, record.gap_tokens, record.tokens) == ([1.0], [], 9)


def test_completions_frames_are_read_too() -> None:
    record = read(
        (1.0, b'{"choices": [{"index": 0, "text": "x", "finish_reason": null}]}'),
        (2.0, b'{"choices": [{"index": 0, "text": "", "finish_reason": "length"}]}'),
        (2.0, b"[DONE]"),
    )
    assert (record.text, record.finish_reason, record.tokens, record.ok) == ("x", "length", 1, True)


def test_without_usage_the_frames_are_counted() -> None:
    assert read((1.0, chunk({"content": "a"})), (1.0, chunk({"content": "b"}))).tokens == 2


@pytest.mark.parametrize(
    ("frames", "kind"),
    [
        ([chunk({"content": "a"}), b"{", chunk({}, finish="stop"), b"[DONE]"], "malformed"),
        ([chunk({"content": "a"}), b'{"error": {"message": "no"}}', b"[DONE]"], "error_frame"),
        ([chunk({"content": "a"}), b"[DONE]"], "truncated"),
        ([chunk({"content": "a"}), chunk({}, finish="stop")], "no_done"),
        ([], "truncated"),
    ],
)
def test_every_way_a_stream_breaks_has_its_name(frames: list[bytes], kind: str) -> None:
    record = read(*((1.0, frame) for frame in frames))
    assert record.error == kind
    assert not record.ok


def test_a_null_error_is_no_error() -> None:
    record = read(
        (1.0, chunk({"content": "a"})),
        (1.0, b'{"error": null, "choices": []}'),
        (1.0, chunk({}, finish="stop")),
    )
    assert record.error == "no_done"


def test_a_whole_answer_has_an_end_and_no_first_token() -> None:
    record = Record(index=0, scheduled=0.0)
    body = {
        "choices": [{"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 3, "completion_tokens": 2},
    }
    read_whole(record, json.dumps(body).encode(), 4.0, keep_text=True)
    assert (record.end, record.text, record.tokens, record.first_token, record.ok) == (
        4.0,
        "hi",
        2,
        None,
        True,
    )


@pytest.mark.parametrize("body", [b"", b"[]", b'{"choices": []}', b'{"choices": 3}'])
def test_a_whole_answer_that_is_none_is_malformed(body: bytes) -> None:
    record = Record(index=0, scheduled=0.0)
    read_whole(record, body, 1.0)
    assert record.error == "malformed"


def test_the_first_failure_stands() -> None:
    record = Record(index=0, scheduled=0.0)
    record.fail("reset", "first")
    record.fail("timeout", "second")
    assert (record.error, record.detail) == ("reset", "first")
