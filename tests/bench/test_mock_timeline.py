import itertools
import json

import pytest

from tokenmill.bench.distribution import seeded
from tokenmill.bench.mock_script import MockScript, read_script, token_times
from tokenmill.bench.mock_timeline import Action, timeline


def actions(script: MockScript, length: int) -> list[Action]:
    return list(timeline(script, length, seeded(0)))


def test_tokens_come_at_the_first_and_then_each_gap() -> None:
    script = MockScript(ttft_s=1.0, gap_s=0.25)
    assert actions(script, 3) == [
        Action("tokens", 1.0, 1),
        Action("tokens", 1.25, 1),
        Action("tokens", 1.5, 1),
        Action("end", 1.5),
    ]


def test_a_chunk_leaves_when_its_last_token_is_made() -> None:
    script = MockScript(ttft_s=1.0, gap_s=0.25, tokens_per_chunk=2)
    assert actions(script, 3) == [Action("tokens", 1.25, 2), Action("tokens", 1.5, 1), Action("end", 1.5)]


def test_a_stall_moves_all_that_comes_behind_it() -> None:
    script = MockScript(gap_s=1.0, stall_after=1, stall_s=10.0)
    assert actions(script, 2) == [
        Action("tokens", 0.0, 1),
        Action("stall", 10.0),
        Action("tokens", 11.0, 1),
        Action("end", 11.0),
    ]


def test_a_stall_without_end_is_the_last_action() -> None:
    assert actions(MockScript(stall_after=0), 5) == [Action("stall", None)]


def test_a_stall_of_no_time_happens_once() -> None:
    assert [action.kind for action in actions(MockScript(stall_after=1, stall_s=0.0), 2)] == [
        "tokens",
        "stall",
        "tokens",
        "end",
    ]


@pytest.mark.parametrize("kind", ["reset", "error"])
def test_the_break_comes_when_the_next_token_would(kind: str) -> None:
    script = read_script(json.dumps({"gap_s": 1.0, f"{kind}_after": 2}))
    assert [(action.kind, action.due, action.tokens) for action in actions(script, 9)] == [
        ("tokens", 0.0, 1),
        ("tokens", 1.0, 1),
        (kind, 2.0, 0),
    ]


def test_no_chunk_reaches_over_a_fault() -> None:
    script = MockScript(tokens_per_chunk=4, malformed_after=6, error_after=11)
    assert [(action.kind, action.tokens) for action in actions(script, 100)] == [
        ("tokens", 4),
        ("tokens", 2),
        ("malformed", 4),
        ("tokens", 1),
        ("error", 0),
    ]


def test_a_fault_behind_the_last_token_still_comes_before_the_end() -> None:
    assert [a.kind for a in actions(MockScript(reset_after=2), 2)] == ["tokens", "tokens", "reset"]
    assert [a.kind for a in actions(MockScript(reset_after=3), 2)] == ["tokens", "tokens", "end"]


def test_an_answer_may_be_empty() -> None:
    assert actions(MockScript(ttft_s=3.0), 0) == [Action("end", 0.0)]


def test_drawn_gaps_follow_the_seed() -> None:
    script = MockScript(ttft_s="exponential:1", gap_s="uniform:0.1:0.2")
    first, again, other = (list(itertools.islice(token_times(script, seeded(s)), 5)) for s in (1, 1, 2))
    assert first == again != other
    assert all(0.1 <= b - a <= 0.2 for a, b in itertools.pairwise(first))
