"""One OpenMP runtime for PyTorch and native code, whose threads sleep soon."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tokenmill.hardware.openmp import SPIN_TURNS, SPIN_VARIABLE

# OMP_DISPLAY_ENV makes the runtime print its settings when it is loaded.
ASKING = {"OMP_DISPLAY_ENV": "verbose"}
RUNTIMES = """
import tokenmill.kernels.reference
import torch, os
torch.ones(1 << 20).sum()
maps = {line.split()[-1] for line in open("/proc/self/maps") if "libgomp" in line}
print(len(maps), os.environ.get("GOMP_SPINCOUNT"))
"""


def run(**environment: str) -> subprocess.CompletedProcess[str]:
    base = {name: value for name, value in os.environ.items() if not name.startswith(("OMP_", "GOMP_"))}
    return subprocess.run(
        [sys.executable, "-c", RUNTIMES],
        env=base | ASKING | environment,
        capture_output=True,
        text=True,
        check=True,
    )


def spins(**environment: str) -> str:
    (line,) = {line for line in run(**environment).stderr.splitlines() if SPIN_VARIABLE in line}
    return line.split("'")[1]


def test_threads_sleep_soon_and_children_inherit_nothing() -> None:
    done = run()
    assert f"{SPIN_VARIABLE} = '{SPIN_TURNS}'" in done.stderr
    assert done.stdout.split() == ["1", "None"]


@pytest.mark.parametrize(
    ("variable", "value", "turns"),
    [("GOMP_SPINCOUNT", "123", "123"), ("OMP_WAIT_POLICY", "passive", "0")],
)
def test_the_users_own_choice_stands(variable: str, value: str, turns: str) -> None:
    assert spins(**{variable: value}) == turns
