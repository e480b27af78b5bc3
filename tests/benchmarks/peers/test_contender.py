from __future__ import annotations

import sys
from pathlib import Path

import pytest

from benchmarks.peers.contender import PeerFailed, last_words, run, run_rows
from benchmarks.peers.rows import Row

ROWS = (Row("a", "total", 1, 2, 3, 1.0), Row("b", "prefill", 1, 2, 1, 1.0))
BATCHES = {"a": [[[1, 2]]], "b": [[[3, 4]]]}
READ = "import json, sys; job = json.load(sys.stdin); "


def python(code: str) -> list[str]:
    return [sys.executable, "-c", code]


def answers(code: str) -> list[tuple[Row, list[float] | PeerFailed]]:
    return list(run_rows(python(READ + code), Path("m.gguf"), ROWS, BATCHES, flags={"x": "1"}))


def test_a_runner_gets_the_job_and_answers_a_line_a_row() -> None:
    code = """
for row in job["rows"]:
    print("loading...")
    rates = [float(len(row["batches"][0][0])), float(row["output_tokens"])]
    print(json.dumps({"row": row["name"], "rates": rates}))
assert job["model"] == "m.gguf" and job["flags"] == {"x": "1"} and job["rows"][1]["kind"] == "prefill"
"""
    assert answers("\n" + code) == [(ROWS[0], [2.0, 3.0]), (ROWS[1], [2.0, 1.0])]


def test_a_row_that_failed_does_not_take_the_others_along() -> None:
    code = 'print(json.dumps({"row": "a", "failed": "no room"})); print(json.dumps({"row": "b", "rates": [1.0]}))'
    (first, failed), second = answers(code)
    assert first is ROWS[0]
    assert isinstance(failed, PeerFailed) and str(failed) == "no room"
    assert second == (ROWS[1], [1.0])


def test_rows_without_an_answer_are_missed() -> None:
    with pytest.raises(PeerFailed, match="no answer for b"):
        answers('print(json.dumps({"row": "a", "rates": [1.0]}))')


def test_a_process_that_ends_badly_fails_with_its_last_words() -> None:
    with pytest.raises(PeerFailed, match="ended with code 3: no such model"):
        run(python("import sys; print('no such model', file=sys.stderr); sys.exit(3)"), timeout_s=60)


def test_a_program_that_is_not_there_fails_by_name() -> None:
    with pytest.raises(PeerFailed, match="/nowhere/bench cannot be started: No such file"):
        run(["/nowhere/bench"], timeout_s=60)


def test_a_process_that_takes_too_long_is_ended() -> None:
    with pytest.raises(PeerFailed, match="took longer than 0 s"):
        run(python("import threading; threading.Event().wait()"), timeout_s=0.2)


def test_last_words_are_few_and_on_one_line() -> None:
    assert last_words(b"1\n2\n\n3 \n 4\n\n") == "2 / 3 / 4"
    assert len(last_words(b"x" * 10_000)) == 500
