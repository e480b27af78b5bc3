"""The text state machine: one answer whatever way the bytes arrive."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenmill.engine.text import TextStream


def streamed(pieces: list[bytes], stops: tuple[str, ...]) -> tuple[list[str], str | None]:
    text = TextStream(stops)
    out = []
    for piece in pieces:
        out.append(text.push(piece))
        if text.stop is not None:
            return out, text.stop
    return [*out, text.finish()], text.stop


def by_character(whole: str, stops: tuple[str, ...]) -> tuple[str, str | None]:
    """The definition, naively: the stop completed first ends the text, the longest if several are."""
    for end in range(1, len(whole) + 1):
        done = [stop for stop in stops if whole[:end].endswith(stop)]
        if done:
            longest = max(done, key=len)
            return whole[: end - len(longest)], longest
    return whole, None


def cuts(data: bytes) -> list[list[bytes]]:
    """Every way to cut up to 10 bytes into pieces."""
    places = range(1, len(data))
    return [
        [data[a:b] for a, b in itertools.pairwise((0, *chosen, len(data)))]
        for count in range(len(data))
        for chosen in itertools.combinations(places, count)
    ]


@pytest.mark.parametrize("whole", ["naïve 🦙", "日本語", "a👩‍👧b"[:3], "abcab", "€€"])
@pytest.mark.parametrize("stops", [(), ("ab",), ("🦙",), ("本",), ("abca", "b"), ("€€",)])
def test_every_cut_gives_the_same_text(whole: str, stops: tuple[str, ...]) -> None:
    expected = by_character(whole, stops)
    for pieces in cuts(whole.encode()[:10]):
        data = b"".join(pieces).decode(errors="replace")
        out, stop = streamed(pieces, stops)
        assert ("".join(out), stop) == (expected if data == whole else by_character(data, stops))


alphabet = st.text(alphabet="abé🦙\n", max_size=24)


@given(alphabet, st.lists(st.text(alphabet="abé🦙", min_size=1, max_size=4), max_size=3), st.data())
def test_random_cuts_match_the_definition(whole: str, stops: list[str], data: st.DataObject) -> None:
    raw = whole.encode()
    places = sorted(data.draw(st.sets(st.integers(0, len(raw)), max_size=8)))
    pieces = [raw[a:b] for a, b in itertools.pairwise((0, *places, len(raw)))]
    out, stop = streamed(pieces, tuple(stops))
    assert ("".join(out), stop) == by_character(whole, tuple(stops))


@given(st.binary(max_size=24), st.lists(st.integers(0, 24), max_size=6))
def test_bytes_that_are_not_text_decode_like_the_whole(raw: bytes, places: list[int]) -> None:
    marks = sorted({min(place, len(raw)) for place in places})
    pieces = [raw[a:b] for a, b in itertools.pairwise((0, *marks, len(raw)))]
    out, _ = streamed(pieces, ())
    assert "".join(out) == raw.decode(errors="replace")


@given(alphabet, st.lists(st.text(alphabet="abé🦙", min_size=1, max_size=4), max_size=3))
def test_it_holds_back_only_what_may_become_a_stop(whole: str, stops: list[str]) -> None:
    text = TextStream(stops)
    seen = ""
    for character in whole:
        seen += text.push(character.encode())
        if text.stop is not None:
            return
        held = whole[len(seen) : text.decoded]
        assert held == "" or any(stop.startswith(held) and stop != held for stop in stops)


def test_a_character_is_released_by_its_last_byte() -> None:
    text = TextStream()
    assert [text.push(bytes([byte])) for byte in "🦙".encode()] == ["", "", "", "🦙"]


def test_an_unfinished_character_becomes_a_replacement_at_the_end() -> None:
    text = TextStream()
    assert text.push("é".encode()[:1]) == ""
    assert text.finish() == "\ufffd"


def test_stops_do_not_count_before_the_minimum() -> None:
    text = TextStream(("b",))
    assert text.push(b"abc", may_stop=False) == "abc"
    assert text.push(b"ab") == "a"
    assert text.stop == "b"


def test_nothing_comes_after_a_stop() -> None:
    text = TextStream(("x",))
    assert text.push(b"ax tail") == "a"
    assert text.push(b"more") == ""
    assert text.finish() == ""
