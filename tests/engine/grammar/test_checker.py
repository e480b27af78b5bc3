"""The process that compiles a grammar first: who is at fault when it dies, and that nothing stays of it."""

from __future__ import annotations

import json
import logging
import os
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import tokenmill
from support.small_vocabulary import SmallVocabulary
from tokenmill.core.errors import EngineStopped, Overloaded, TokenmillError
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar import checker as under_test
from tokenmill.engine.grammar import child_process
from tokenmill.engine.grammar.checker import Checker
from tokenmill.engine.grammar.messages import OUT_OF_MEMORY, ChildLimits
from tokenmill.engine.grammar.vocabulary import grammar_vocabulary

GOOD = Grammar("regex", "a")


def object_of(name: str) -> dict[str, object]:
    """A schema of 2000 automata over Unicode classes: a second of work."""
    patterns = {f"{name}{n}": rf"^\p{{L}}{{1,{n + 1}}}\w*{name}$" for n in range(2000)}
    fields = {field: {"type": "string", "pattern": pattern} for field, pattern in patterns.items()}
    return {"type": "object", "properties": fields}


EXPENSIVE = Grammar("json_schema", json.dumps({"anyOf": [object_of(name) for name in "abcde"]}))


def checker_with(limits: ChildLimits) -> Checker:
    return Checker(grammar_vocabulary(SmallVocabulary(), SmallVocabulary.end_ids), limits)


@pytest.fixture
def checker() -> Iterator[Checker]:
    made = checker_with(ChildLimits())
    yield made
    made.stop()
    made.rest()


def pid_of(checker: Checker) -> int:
    assert checker.pid is not None
    return checker.pid


def failure(checker: Checker, grammar: Grammar) -> TokenmillError:
    with pytest.raises(TokenmillError) as caught:
        checker.check(grammar)
    return caught.value


def gone(pid: int) -> bool:
    """Whether there is no such process, not even one to wait for."""
    return not Path(f"/proc/{pid}").exists()


def test_too_much_processor_time_is_the_grammars_fault(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    checker = checker_with(ChildLimits(cpu_s=1, memory_bytes=8 << 30))
    checker.check(GOOD)
    pid = pid_of(checker)
    error = failure(checker, EXPENSIVE)
    assert (error.status, error.code) == (400, "grammar_too_complex")
    assert f"status -{int(signal.SIGXCPU)}" in caplog.text
    assert gone(pid)
    checker.check(GOOD)
    checker.rest()


@pytest.mark.parametrize(
    ("source", "status"),
    [("(a|b)" * 100_000, -signal.SIGABRT), ("a" * (64 << 20), OUT_OF_MEMORY)],
    ids=["the library", "python"],
)
def test_too_much_memory_is_the_grammars_fault(
    caplog: pytest.LogCaptureFixture, source: str, status: int
) -> None:
    caplog.set_level(logging.INFO)
    checker = checker_with(ChildLimits(cpu_s=60, memory_bytes=32 << 20))
    error = failure(checker, Grammar("regex", source))
    assert (error.status, error.code) == (400, "grammar_too_complex")
    assert f"status {int(status)}" in caplog.text
    checker.rest()


def test_what_memory_suffices_for_passes(checker: Checker) -> None:
    checker.check(Grammar("regex", "(a|b)" * 100_000))


@pytest.mark.parametrize("way", ["SIGXCPU", "SIGSEGV", "SIGABRT", "SIGKILL", "SIGTERM"])
def test_which_death_is_whose_fault(checker: Checker, way: str) -> None:
    checker.check(GOOD)
    pid = pid_of(checker)
    os.kill(pid, signal.SIGSTOP)
    failed: list[TokenmillError] = []
    asking = threading.Thread(target=lambda: failed.append(failure(checker, Grammar("regex", "ab"))))
    asking.start()
    os.kill(pid, signal.Signals[way])
    os.kill(pid, signal.SIGCONT)
    asking.join()
    theirs = way in ("SIGXCPU", "SIGSEGV", "SIGABRT")
    assert (failed[0].status, failed[0].code) == (
        (400, "grammar_too_complex") if theirs else (503, "grammar_unavailable")
    )
    checker.check(Grammar("regex", "ab"))


def test_no_answer_in_time_is_nobodys_fault(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    checker.check(GOOD)
    os.kill(pid_of(checker), signal.SIGSTOP)  # as on a machine that is busy with other things
    monkeypatch.setattr(under_test, "CHECK_S", 0.05)
    error = failure(checker, Grammar("regex", "ab"))
    assert (error.status, error.code) == (503, "grammar_unavailable")
    monkeypatch.undo()
    checker.check(Grammar("regex", "ab"))


def test_a_broken_child_is_not_taken_for_one_that_left(
    checker: Checker, caplog: pytest.LogCaptureFixture
) -> None:
    checker.check(GOOD)
    error = failure(checker, Grammar("regex", 5))  # type: ignore[arg-type]  # breaks the child
    assert (error.status, error.code) == (503, "grammar_unavailable")
    assert "with status 1" in caplog.text


def test_the_kernel_holds_the_limits(checker: Checker) -> None:
    checker.check(GOOD)
    limits = {}
    for line in Path(f"/proc/{checker.pid}/limits").read_text().splitlines()[1:]:
        limits[line[:26].strip()] = line[26:47].strip()
    assert 2 <= int(limits["Max cpu time"]) <= 6  # what starting took, and 2 s
    grown = int(limits["Max address space"]) - (512 << 20)
    assert 0 < grown < 8 << 30
    assert limits["Max core file size"] == "0"
    assert limits["Max file size"] == "0"


def test_a_child_that_died_in_between_is_replaced(checker: Checker) -> None:
    checker.check(GOOD)
    first = pid_of(checker)
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    checker.check(GOOD)
    assert checker.pid not in (None, first)
    assert gone(first)


def test_at_rest_there_is_no_child(checker: Checker) -> None:
    checker.rest()
    checker.check(GOOD)
    pid = pid_of(checker)
    checker.rest()
    assert checker.pid is None
    assert gone(pid)
    checker.check(GOOD)


def test_stopping_interrupts_a_check_and_starts_no_child_again(checker: Checker) -> None:
    checker.check(GOOD)
    pid = pid_of(checker)
    os.kill(pid, signal.SIGSTOP)
    failed: list[TokenmillError] = []
    asking = threading.Thread(target=lambda: failed.append(failure(checker, Grammar("regex", "ab"))))
    asking.start()
    checker.stop()
    asking.join()
    assert isinstance(failed[0], EngineStopped)
    checker.rest()
    assert gone(pid)
    assert isinstance(failure(checker, GOOD), EngineStopped)


def test_without_a_child_grammars_are_unavailable(
    checker: Checker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    error = failure(checker, GOOD)
    assert isinstance(error, Overloaded)
    assert error.code == "grammar_unavailable"
    assert "/nowhere" not in error.message
    assert "cannot be started" in caplog.text
    monkeypatch.undo()
    checker.check(GOOD)


def test_why_a_child_does_not_start_is_logged(
    checker: Checker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(child_process, "MODULE", "tokenmill.no_such_module")
    assert failure(checker, GOOD).code == "grammar_unavailable"
    assert "No module named tokenmill.no_such_module" in caplog.text


def test_the_child_finds_its_libraries_where_the_server_has_them(
    checker: Checker, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    checker.check(GOOD)
    environment = Path(f"/proc/{checker.pid}/environ").read_bytes().split(b"\0")
    (places,) = [entry for entry in environment if entry.startswith(b"PYTHONPATH=")]
    assert str(tmp_path).encode() in places
    assert str(Path(tokenmill.__file__).parents[1]).encode() in places


def test_the_child_sees_nothing_of_our_environment(checker: Checker, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_API_KEY", "secret-key")
    checker.check(GOOD)
    assert b"secret-key" not in Path(f"/proc/{checker.pid}/environ").read_bytes()
