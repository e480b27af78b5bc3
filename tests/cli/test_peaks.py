"""`tokenmill peaks`: the figures for people and programs, or why there are none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tokenmill.cli import app
from tokenmill.hardware import peaks
from tokenmill.hardware.peaks import Peaks

FOUND = Peaks(29.96e9, 473.4e9, 2)


@pytest.fixture(autouse=True)
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[bool]:
    calls: list[bool] = []

    def measure(*, fresh: bool) -> Peaks:
        calls.append(fresh)
        return FOUND

    monkeypatch.setattr(peaks, "measure_peaks", measure)
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "portable")
    return calls


def test_people_read_one_line(capsys: pytest.CaptureFixture[str], asked: list[bool]) -> None:
    assert app.run(["peaks"]) == 0
    assert capsys.readouterr().out == (
        "portable, 2 threads: reads 30.0 GB/s, 473 billion int8 multiply-adds/s\n"
    )
    assert app.run(["peaks", "--fresh"]) == 0
    assert asked == [False, True]


def test_programs_read_plain_units(capsys: pytest.CaptureFixture[str]) -> None:
    assert app.run(["peaks", "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == {
        "isa": "portable",
        "threads": 2,
        "read_bytes_per_second": 29960000000,
        "int8_multiply_adds_per_second": 473400000000,
    }


def test_native_code_that_is_switched_off_measures_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOKENMILL_CPU_ISA", "none")
    assert app.run(["peaks"]) == 1
    assert "TOKENMILL_CPU_ISA=none" in capsys.readouterr().err
