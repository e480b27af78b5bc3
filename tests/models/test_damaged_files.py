"""Whatever is done to a model's files, the model is read or refused: in bounded time and memory, by one short line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.damage import KINDS

TESTS = Path(__file__).parents[1]
ROUNDS = 250
SLOWEST_S = 1.0


@pytest.mark.parametrize("kind", KINDS)
def test_damaged_models_are_read_or_refused(kind: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "support.damage", kind, "7", str(ROUNDS)],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout)
    assert found["faults"] == []
    assert found["read"] + found["refused"] == ROUNDS
    assert min(found["read"], found["refused"]) > ROUNDS / 20  # the damage reaches both
    assert found["slowest_s"] < SLOWEST_S, found["slowest"]
