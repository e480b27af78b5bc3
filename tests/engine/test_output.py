"""From sampled tokens to deltas: text, log-probability entries, and nothing of a stop string."""

from __future__ import annotations

import pytest

from tokenmill.core.delta import Delta
from tokenmill.core.request import GenerateRequest, SamplingParams
from tokenmill.engine.output import OutputStream
from tokenmill.engine.sampler import Sampled
from tokenmill.engine.sequence import Sequence


class Pieces:
    """A vocabulary given as bytes; token 0 is the end."""

    def __init__(self, *pieces: bytes, strips: bool = False) -> None:
        self._pieces = (b"", *pieces)
        self.first_token_strips_space = strips

    def token_bytes(self, token_id: int) -> bytes:
        return self._pieces[token_id]

    def token_text(self, token_id: int) -> str:
        return self._pieces[token_id].decode(errors="replace")


def run(
    vocabulary: Pieces, tokens: list[int], prompt: tuple[int, ...] = (0,), **sampling: object
) -> list[Delta]:
    params = SamplingParams(logprobs=0, **sampling)  # type: ignore[arg-type]  # by name
    request = GenerateRequest(request_id="r", prompt_ids=prompt, sampling=params)
    seq = Sequence(request, 0, 0, len(prompt), list(prompt), max_total=100)
    stream = OutputStream(seq, vocabulary, frozenset({0}))
    deltas = []
    for token in tokens:
        seq.tokens.append(token)
        deltas.append(stream.push(Sampled(token, logprob=-1.0)))
        if deltas[-1].finish_reason is not None:
            break
    return deltas


def entries(deltas: list[Delta]) -> list[list[int]]:
    return [[entry.token_id for entry in delta.logprobs] for delta in deltas]


def test_entries_come_with_their_text_and_the_end_has_one_too() -> None:
    deltas = run(Pieces(b"a", b"b"), [1, 2, 0])
    assert [delta.text for delta in deltas] == ["a", "b", ""]
    assert entries(deltas) == [[1], [2], [0]]
    assert deltas[-1].finish_reason == "stop"


def test_tokens_of_one_character_come_together() -> None:
    llama = "🦙".encode()
    deltas = run(Pieces(llama[:2], llama[2:]), [1, 2])
    assert [delta.text for delta in deltas] == ["", "🦙"]
    assert entries(deltas) == [[], [1, 2]]
    assert deltas[1].logprobs[0].bytes == llama[:2]


def test_entries_of_held_text_wait_and_those_of_a_stop_never_come() -> None:
    vocabulary = Pieces(b"x", b"st", b"op", b"ay")
    stopped = run(vocabulary, [1, 2, 3], stop=("stop",))
    assert [delta.text for delta in stopped] == ["x", "", ""]
    assert entries(stopped) == [[1], [], []]
    assert stopped[-1].stop_reason == "stop"
    stayed = run(vocabulary, [1, 2, 4], stop=("stop",))
    assert [delta.text for delta in stayed] == ["x", "", "stay"]
    assert entries(stayed) == [[1], [], [2, 4]]


def test_the_model_s_end_releases_what_was_held() -> None:
    deltas = run(Pieces(b"st"), [1, 0], stop=("stop",))
    assert [delta.text for delta in deltas] == ["", "st"]
    assert entries(deltas) == [[], [1, 0]]


def test_ignoring_the_end_goes_on() -> None:
    deltas = run(Pieces(b"a"), [1, 0, 1], ignore_eos=True)
    assert [delta.text for delta in deltas] == ["a", "", "a"]
    assert deltas[-1].finish_reason is None


@pytest.mark.parametrize(("prompt", "text"), [((0,), "word word"), ((1,), " word word")])
def test_only_an_answer_that_begins_a_text_loses_its_first_space(prompt: tuple[int, ...], text: str) -> None:
    deltas = run(Pieces(b" word", strips=True), [1, 1], prompt=prompt)
    assert "".join(delta.text for delta in deltas) == text


def test_visible_tokens_leave_their_names_in_the_text() -> None:
    class Marked(Pieces):
        def token_text(self, token_id: int) -> str:
            return "[CALL]" if token_id == 2 else super().token_text(token_id)

    vocabulary = Marked(b"a", b"")
    assert "".join(delta.text for delta in run(vocabulary, [1, 2, 1, 0])) == "aa"
    assert "".join(delta.text for delta in run(vocabulary, [1, 2, 1, 0], visible_ids=(2,))) == "a[CALL]a"
    stopped = run(vocabulary, [1, 2, 1, 0], visible_ids=(2,), stop=("[CALL]",))
    assert ("".join(delta.text for delta in stopped), stopped[-1].stop_reason) == ("a", "[CALL]")
