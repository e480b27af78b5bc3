"""`make sanitize` ends with a finding, and never passes because it ran nothing."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "sanitize.sh"
SOURCE = """extern "C" __attribute__((visibility("default"))) int get(const int *numbers, int place) {
    return numbers[place] + 1;
}
"""
TEST = """
import ctypes
from pathlib import Path
import numpy as np
from tokenmill.hardware.isa import ISAS
from tokenmill.hardware.library import load_library

def test_get():
    numbers = np.full(4, 2**31 - 1 if {largest} else 0, dtype=np.int32)
    pointer = ctypes.c_void_p(numbers.ctypes.data)
    assert load_library(Path({folder!r}), "get", ISAS[-1]).get(pointer, {place}) == 1
"""


def sanitize(folder: Path, place: int, largest: bool = False) -> subprocess.CompletedProcess[str]:
    (folder / "get.cpp").write_text(SOURCE)
    test = folder / "test_get.py"
    test.write_text(TEST.format(folder=str(folder), place=place, largest=largest))
    return run(str(test))


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["bash", str(SCRIPT), *arguments], capture_output=True, text=True)


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))


def test_right_code_passes(tmp_path: Path) -> None:
    done = sanitize(tmp_path, place=3)
    assert done.returncode == 0, done.stderr
    assert "1 passed" in done.stdout


def test_reading_behind_an_array_is_found(tmp_path: Path) -> None:
    done = sanitize(tmp_path, place=4)
    assert done.returncode != 0
    assert "AddressSanitizer: heap-buffer-overflow" in done.stderr
    assert "get.cpp:2" in done.stderr


def test_an_overflowing_sum_is_found(tmp_path: Path) -> None:
    done = sanitize(tmp_path, place=0, largest=True)
    assert done.returncode != 0
    assert "runtime error: signed integer overflow" in done.stderr


def test_no_tests_are_a_failure(tmp_path: Path) -> None:
    assert run(str(tmp_path)).returncode != 0
    assert run(str(tmp_path / "missing")).returncode != 0
