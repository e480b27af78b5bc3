"""Grammars to matchers: what cannot be used is refused in bounded time, and harms nobody."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.small_vocabulary import SmallVocabulary
from tokenmill.core.bounds import MAX_GRAMMAR_BYTES
from tokenmill.core.errors import EngineStopped, GenerationFailed, InvalidRequest, Overloaded
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar import compiler as under_test
from tokenmill.engine.grammar.checked_build import CheckedBuild
from tokenmill.engine.grammar.compiler import GrammarCompiler

SECONDS = 30  # far above what anything here takes


@pytest.fixture
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(SmallVocabulary(), SmallVocabulary.end_ids)
    yield made
    made.close()


def refusal(compiler: GrammarCompiler, kind: str, source: str) -> InvalidRequest:
    with pytest.raises(InvalidRequest) as caught:
        compiler.matchers(Grammar(kind, source), 1).result(SECONDS)  # type: ignore[arg-type]  # a kind by name
    return caught.value


def usable(compiler: GrammarCompiler, regex: str = "a") -> None:
    assert len(compiler.matchers(Grammar("regex", regex), 2).result(SECONDS)) == 2


def test_what_is_wrong_is_said_in_one_line(compiler: GrammarCompiler) -> None:
    said = {
        (kind, source): refusal(compiler, kind, source)
        for kind, source in (
            ("regex", "a(b"),
            ("lark", "start: nowhere\n"),
            ("lark", 'start: "open'),
            ("json_schema", "{"),
            ("json_schema", "[]"),
            ("json_schema", '{"type": "object", "not": {}}'),
            ("json_schema", '{"type": "nonsense"}'),
            ("json_schema", '{"type": "string", "format": "colour"}'),
        )
    }
    assert {error.code for error in said.values()} == {"invalid_grammar"}
    assert all("\n" not in error.message and len(error.message) < 300 for error in said.values())
    assert "unclosed group" in said["regex", "a(b"].message
    assert "nowhere" in said["lark", "start: nowhere\n"].message
    assert '"not"' in said["json_schema", '{"type": "object", "not": {}}'].message


def test_a_schema_cannot_ask_to_be_read_leniently(compiler: GrammarCompiler) -> None:
    schema = {"type": "object", "not": {}, "x-guidance": {"lenient": True}}
    assert "not" in refusal(compiler, "json_schema", json.dumps(schema)).message


def test_nothing_is_fetched(compiler: GrammarCompiler) -> None:
    for reference in ("http://127.0.0.1:9/schema", "file:///etc/hostname"):
        assert refusal(compiler, "json_schema", json.dumps({"$ref": reference})).code == "invalid_grammar"


def test_size_and_depth_are_bounded(compiler: GrammarCompiler) -> None:
    assert str(MAX_GRAMMAR_BYTES) in refusal(compiler, "regex", "a" * (MAX_GRAMMAR_BYTES + 1)).message
    assert str(MAX_GRAMMAR_BYTES) in refusal(compiler, "regex", "é" * (MAX_GRAMMAR_BYTES - 1)).message
    nested: dict[str, object] = {"type": "null"}
    for _ in range(20):
        nested = {"properties": {"a": nested}}
    assert "deeper" in refusal(compiler, "json_schema", json.dumps(nested)).message
    assert compiler.child_pid is None  # all of that without the child


HOSTILE = {
    "parentheses": ("regex", "(" * 30_000 + "a" + ")" * 30_000),
    "lark parentheses": ("lark", "start: " + "(" * 30_000 + '"a"' + ")" * 30_000),
    "repeated repeats": ("regex", "(a{1,1000}){1,1000}"),
    "exponential states": ("regex", "(.*a.{20})*"),
    "alternatives": ("regex", "|".join(f"a{number}" for number in range(9_000))),
    "left recursion": ("lark", 'start: start start | "a" | ""\n'),
    "nothing but itself": ("lark", "start: start\n"),
    "many rules": ("lark", "start: " + "|".join(f"r{n}" for n in range(3000)) + "\n"
                   + "\n".join(f'r{n}: "a{n}"' for n in range(3000))),
    "enum": ("json_schema", json.dumps({"enum": list(range(9_000))})),
    "endless reference": ("json_schema", '{"$ref": "#"}'),
    "references in a circle": ("json_schema", json.dumps({"$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}, "$ref": "#/$defs/a"})),
    "crossed patterns": ("json_schema", json.dumps({"allOf": [{"type": "string", "pattern": f"^.*{c}.*$"} for c in "abcdefghij"]})),
    "null bytes": ("lark", 'start: "\0"\n'),
}  # fmt: skip


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_grammars_end_in_a_verdict(shared: GrammarCompiler, name: str) -> None:
    kind, source = HOSTILE[name]
    began = time.monotonic()
    try:
        shared.matchers(Grammar(kind, source), 1).result(SECONDS)  # type: ignore[arg-type]  # a kind by name
    except InvalidRequest as error:
        assert error.code in ("invalid_grammar", "grammar_too_complex")
        assert len(error.message) < 300
    assert time.monotonic() - began < SECONDS
    usable(shared)


@pytest.fixture(scope="module")
def shared() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(SmallVocabulary(), SmallVocabulary.end_ids)
    yield made
    made.close()


def test_what_is_refused_once_is_refused_at_once(compiler: GrammarCompiler) -> None:
    first = refusal(compiler, "regex", "a(b")
    again = compiler.matchers(Grammar("regex", "a(b"), 1)
    assert again.done()
    error = again.exception()
    assert isinstance(error, InvalidRequest)
    assert error is not first
    assert (error.message, error.code) == (first.message, first.code)


def test_a_grammar_too_long_to_use_is_not_kept(compiler: GrammarCompiler) -> None:
    source = "a" * (MAX_GRAMMAR_BYTES + 1)
    refusal(compiler, "regex", source)
    assert not compiler.matchers(Grammar("regex", source), 1).done()


@pytest.fixture
def held(compiler: GrammarCompiler) -> Iterator[GrammarCompiler]:
    """A compiler whose child does not move, with one grammar in it."""
    usable(compiler)
    pid = compiler.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    compiler.matchers(Grammar("regex", "ab"), 1)
    wait_until(lambda: compiler._in_work is not None)
    yield compiler
    compiler.close()


def watched_builds(monkeypatch: pytest.MonkeyPatch) -> list[Grammar]:
    """What is compiled from now on."""
    built: list[Grammar] = []
    build = CheckedBuild.build

    def watched(self: CheckedBuild, grammar: Grammar) -> object:
        built.append(grammar)
        return build(self, grammar)

    monkeypatch.setattr(CheckedBuild, "build", watched)
    return built


def go_on(held: GrammarCompiler) -> None:
    assert held.child_pid is not None
    os.kill(held.child_pid, signal.SIGCONT)


def test_requests_for_one_new_grammar_share_its_compilation(
    held: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watched_builds(monkeypatch)
    joined = [held.matchers(Grammar("regex", "bc"), 1) for _ in range(3 * under_test.MAX_PENDING)]
    assert held.pending == 1 + len(joined)
    go_on(held)
    matchers = [future.result(SECONDS)[0] for future in joined]
    assert built == [Grammar("regex", "bc")]
    assert len({id(matcher._state) for matcher in matchers}) == len(joined)
    assert held.pending == 0


def test_a_bad_grammar_is_refused_to_all_that_wait_for_it(held: GrammarCompiler) -> None:
    joined = [held.matchers(Grammar("regex", "a(b"), 1) for _ in range(3)]
    go_on(held)
    errors = [future.exception(SECONDS) for future in joined]
    assert [type(error) for error in errors] == [InvalidRequest] * 3
    assert len({id(error) for error in errors}) == 3  # each can be raised with a traceback of its own


def test_who_leaves_does_not_take_a_shared_grammar_along(held: GrammarCompiler) -> None:
    stays, leaves = (held.matchers(Grammar("regex", "bc"), 1) for _ in range(2))
    assert leaves.cancel()
    go_on(held)
    assert len(stays.result(SECONDS)) == 1


def test_a_grammar_nobody_waits_for_is_not_compiled(
    held: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    built = watched_builds(monkeypatch)
    held.matchers(Grammar("regex", "bc"), 1).cancel()
    assert held.pending == 1
    go_on(held)
    usable(held, "cd")
    assert built == [Grammar("regex", "cd")]


def test_closing_fails_what_waits_and_ends_thread_and_child(held: GrammarCompiler) -> None:
    pid = held.child_pid
    assert pid is not None
    waiting = held.matchers(Grammar("regex", "bc"), 1)
    held.close()
    assert isinstance(waiting.exception(0), EngineStopped)
    assert isinstance(held.matchers(Grammar("regex", "cd"), 1).exception(0), EngineStopped)
    assert isinstance(held.matchers(Grammar("regex", "a"), 1).exception(0), EngineStopped)  # known, too
    assert gone(pid)
    assert held._thread is not None
    assert not held._thread.is_alive()


def test_an_idle_child_is_ended_and_the_next_grammar_starts_another() -> None:
    compiler = GrammarCompiler(SmallVocabulary(), SmallVocabulary.end_ids, idle_s=0.05)
    usable(compiler)
    wait_until(lambda: compiler.child_pid is None)
    usable(compiler, "b")
    compiler.close()


def test_a_fault_of_this_server_is_one_of_the_request(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Panic(BaseException):
        """What a panic of the library arrives as."""

    def panic(*_: object) -> None:
        raise Panic

    monkeypatch.setattr(CheckedBuild, "build", panic)
    with pytest.raises(GenerationFailed):
        compiler.matchers(Grammar("regex", "a"), 1).result(SECONDS)
    assert "could not be compiled" in caplog.text
    monkeypatch.undo()
    usable(compiler)


def test_compiled_grammars_are_kept_up_to_a_bound(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "KEPT_VERDICTS", 2)
    for regex in ("a", "b", "a", "c"):  # b has not been used for the longest time
        usable(compiler, regex)

    def known(regex: str) -> bool:
        return compiler.matchers(Grammar("regex", regex), 1).done()

    assert [known("a"), known("c"), known("b")] == [True, True, False]


def test_only_so_many_grammars_wait_and_who_leaves_makes_room(
    held: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "MAX_PENDING", 2)
    waiting = held.matchers(Grammar("regex", "bc"), 1)
    refused = held.matchers(Grammar("regex", "cd"), 1)
    assert isinstance(refused.exception(0), Overloaded)
    assert not held.matchers(Grammar("regex", "bc"), 1).cancelled()  # it waits already: no further place
    assert held.matchers(Grammar("regex", "a"), 1).done()  # it is known
    held.stop()
    assert isinstance(waiting.exception(0), EngineStopped)


def test_a_grammar_that_left_made_room(held: GrammarCompiler, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(under_test, "MAX_PENDING", 2)
    held.matchers(Grammar("regex", "bc"), 1).cancel()
    later = held.matchers(Grammar("regex", "cd"), 1)
    go_on(held)
    assert len(later.result(SECONDS)) == 1


def wait_until(reached: Callable[[], bool]) -> None:
    """Lets other threads run until it is so."""
    end = time.monotonic() + SECONDS
    while not reached():
        assert time.monotonic() < end
        time.sleep(0.005)


def gone(pid: int) -> bool:
    """Whether there is no such process, not even one to wait for."""
    return not Path(f"/proc/{pid}").exists()
