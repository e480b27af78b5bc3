"""Grammars to matchers: what cannot be used is refused in bounded time, and harms nobody."""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from concurrent.futures import Future
from pathlib import Path

import pytest

from support.small_vocabulary import SmallVocabulary
from tokenmill.core.bounds import MAX_GRAMMAR_BYTES
from tokenmill.core.errors import EngineStopped, GenerationFailed, InvalidRequest, Overloaded
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar import compiler as under_test
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


def test_a_child_that_dies_is_replaced(compiler: GrammarCompiler) -> None:
    usable(compiler)
    first = compiler.child_pid
    assert first is not None
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    usable(compiler, "b")
    assert compiler.child_pid not in (None, first)


def test_what_kills_the_child_is_too_complex_and_not_tried_again(compiler: GrammarCompiler) -> None:
    usable(compiler)
    pid = compiler.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)  # as good as an endless compilation
    assert refusal(compiler, "regex", "ab").code == "grammar_too_complex"
    usable(compiler, "b")
    replaced = compiler.child_pid
    assert refusal(compiler, "regex", "ab").code == "grammar_too_complex"
    assert compiler.child_pid == replaced


def test_no_child_fails_requests_with_a_grammar_and_says_so(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    with pytest.raises(GenerationFailed) as caught:
        compiler.matchers(Grammar("regex", "a"), 1).result(SECONDS)
    assert caught.value.code == "grammar_unavailable"
    assert "/nowhere" not in caught.value.message
    assert "cannot be started" in caplog.text
    monkeypatch.undo()
    usable(compiler)


def test_the_child_sees_nothing_of_our_environment(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_API_KEY", "secret-key")
    usable(compiler)
    assert b"secret-key" not in Path(f"/proc/{compiler.child_pid}/environ").read_bytes()


def test_closing_ends_the_child_and_what_waits(compiler: GrammarCompiler) -> None:
    usable(compiler)
    pid = compiler.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    waiting = [compiler.matchers(Grammar("regex", regex), 1) for regex in ("ab", "bc")]
    assert compiler.pending == 2
    compiler.close()
    for future in waiting:
        with pytest.raises(EngineStopped):
            future.result(SECONDS)
    with pytest.raises(EngineStopped):
        compiler.matchers(Grammar("regex", "cd"), 1)


def test_compiled_grammars_are_kept_up_to_a_bound(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "CACHED_GRAMMARS", 2)
    for regex in ("a", "b", "a", "c"):  # b has not been used for the longest time
        usable(compiler, regex)

    def known(regex: str) -> bool:
        return compiler.matchers(Grammar("regex", regex), 1).done()

    assert [known("a"), known("c"), known("b")] == [True, True, False]


def test_only_so_many_wait_and_who_leaves_makes_room(
    compiler: GrammarCompiler, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(under_test, "MAX_PENDING", 2)
    usable(compiler)
    pid = compiler.child_pid
    assert pid is not None
    os.kill(pid, signal.SIGSTOP)
    compiler.matchers(Grammar("regex", "ab"), 1)
    waiting: Future[object] = compiler.matchers(Grammar("regex", "bc"), 1)  # type: ignore[assignment]  # read only
    with pytest.raises(Overloaded):
        compiler.matchers(Grammar("regex", "cd"), 1)
    waiting.cancel()
    os.kill(pid, signal.SIGCONT)
    usable(compiler, "d")
