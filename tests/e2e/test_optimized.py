"""Under `python -O` every check still holds: none of them is an `assert`, which would be gone."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import httpx2
import pytest

import tokenmill
from support.attacks import FLAGS, ask, check_log, exchange
from support.hostile_bodies import HOSTILE
from support.hostile_sockets import sizes, smuggling
from support.served import Served, serving
from support.witness import Witness

SOME_BODIES = list(islice(HOSTILE, 0, None, 9))
SOME_SOCKETS = list(islice(smuggling(), 0, None, 6))


@pytest.fixture(scope="module")
def optimized(small_model_path: Path) -> Iterator[Served]:
    with serving(small_model_path, *FLAGS, optimized=True) as running:
        yield running
        check_log(running.log())


@pytest.fixture(scope="module")
def witness(optimized: Served) -> Iterator[Witness]:
    made = Witness(optimized)
    yield made
    made.close()


def test_no_check_is_an_assert() -> None:
    for path in Path(tokenmill.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        lines = [node.lineno for node in ast.walk(tree) if isinstance(node, ast.Assert)]
        assert not lines, f"{path.name} asserts in {lines}"


def test_it_is_the_optimized_server(optimized: Served) -> None:
    command = Path(f"/proc/{optimized.process.pid}/cmdline").read_bytes().split(b"\0")
    assert b"-O" in command


@pytest.mark.parametrize("name", SOME_BODIES)
def test_a_hostile_body(optimized: Served, witness: Witness, name: str) -> None:
    with httpx2.Client(base_url=optimized.url, timeout=60) as client, witness.beside():
        ask(client, HOSTILE[name])


@pytest.mark.parametrize("name", SOME_SOCKETS)
def test_hostile_bytes(optimized: Served, witness: Witness, name: str) -> None:
    with witness.beside():
        exchange(optimized, *smuggling()[name])


def test_a_body_too_large(optimized: Served, witness: Witness) -> None:
    with witness.beside():
        exchange(optimized, *sizes()["100 megabytes in chunks"])
