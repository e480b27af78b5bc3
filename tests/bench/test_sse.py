import itertools

from hypothesis import given
from hypothesis import strategies as st

from tokenmill.bench.sse import SseDecoder

STREAM = (
    b': keep-alive\n\ndata: {"a": 1}\n\nevent: x\nid: 7\ndata:{"b": 2}\n\ndata: one\ndata: two\n\ndata\n\n'
    b"\n\ndata: [DONE]\n\n"
)
EVENTS = [b'{"a": 1}', b'{"b": 2}', b"one\ntwo", b"", b"[DONE]"]


def pieces(stream: bytes, cuts: list[int]) -> list[bytes]:
    edges = [0, *sorted(cut % (len(stream) + 1) for cut in cuts), len(stream)]
    return [stream[start:stop] for start, stop in itertools.pairwise(edges)]


@given(st.lists(st.integers(0, 1000)), st.sampled_from([b"\n", b"\r\n", b"\r"]))
def test_events_do_not_depend_on_how_the_bytes_are_cut(cuts: list[int], line_end: bytes) -> None:
    decoder = SseDecoder()
    stream = STREAM.replace(b"\n", line_end) + b": end"
    events = [event for piece in pieces(stream, cuts) for event in decoder.feed(piece)]
    assert events == EVENTS


def test_a_line_end_cut_in_half_does_not_end_the_event() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: one\r") == []
    assert decoder.feed(b"\ndata: two\r\n\r\n") == [b"one\ntwo"]


def test_an_event_comes_with_its_empty_line_and_not_before() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b"data: x\n") == []
    assert decoder.feed(b"\n") == [b"x"]


def test_only_one_space_behind_the_colon_is_taken_off() -> None:
    assert SseDecoder().feed(b"data:  x \n\n") == [b" x "]
