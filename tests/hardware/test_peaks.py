"""The machine's peaks: plausible, kept, and measured again where what is kept is of no use."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from tokenmill.core.errors import ConfigError, NativeUnavailable
from tokenmill.hardware import peaks
from tokenmill.hardware.cpu import cpu_flags, usable_cores
from tokenmill.hardware.isa import ISAS, VARIABLE, Isa
from tokenmill.hardware.peaks import KEPT, Peaks, measure_peaks

LEVELS = [isa for isa in ISAS if isa.needs.issubset(cpu_flags())]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path))
    monkeypatch.delenv(VARIABLE, raising=False)
    return tmp_path


@pytest.fixture
def measured(home: Path, monkeypatch: pytest.MonkeyPatch) -> list[Peaks]:
    """Measurements taken; each one finds another number."""
    taken: list[Peaks] = []
    numbers = itertools.count(1)

    def measure(isa: Isa, threads: int) -> Peaks:
        taken.append(Peaks(float(next(numbers)), 2.0, threads))
        return taken[-1]

    monkeypatch.setattr(peaks, "_measure", measure)
    monkeypatch.setattr(peaks, "build_library", lambda sources, name, isa: Path(f"{name}-{isa.name}.so"))
    return taken


@pytest.mark.parametrize("isa", LEVELS, ids=[isa.name for isa in LEVELS])
def test_each_level_measures_what_a_processor_can_do(
    isa: Isa, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Memory of 0.1 to 10,000 GB/s; at most 1024 multiply-adds a cycle and core, of 10 GHz at most."""
    monkeypatch.setattr(peaks, "default_home", lambda: tmp_path)  # the library is shared with other tests
    monkeypatch.setenv(VARIABLE, isa.name)
    found = measure_peaks()
    assert found is not None
    assert found.threads == usable_cores()
    assert 1e8 < found.read_bytes_per_second < 1e13
    assert 1e7 < found.int8_multiply_adds_per_second / found.threads < 1024 * 1e10
    assert measure_peaks() == found


def test_they_are_kept_until_fresh_ones_are_asked_for(measured: list[Peaks]) -> None:
    assert measure_peaks() == measure_peaks() == measured[0]
    assert measure_peaks(fresh=True) == measured[1]
    assert measure_peaks() == measured[1]
    assert len(measured) == 2


def test_another_cpu_thread_count_or_level_is_measured_by_itself(
    measured: list[Peaks], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure_peaks()
    monkeypatch.setattr(peaks, "usable_cores", lambda: 99)
    measure_peaks()
    monkeypatch.setenv(VARIABLE, "portable")
    measure_peaks()
    monkeypatch.setattr(peaks, "cpu_model", lambda: "another")
    assert measure_peaks() == Peaks(4.0, 2.0, 99)
    monkeypatch.undo()


@pytest.mark.parametrize("content", ["", "{", "[]", '{"a": 1}', "\udcff"])
def test_a_damaged_file_is_replaced(home: Path, measured: list[Peaks], content: str) -> None:
    (home / "peaks.json").write_bytes(content.encode("utf-8", "surrogateescape"))
    assert measure_peaks() == measure_peaks() == measured[0]


def test_kept_peaks_that_cannot_be_are_measured_again(home: Path, measured: list[Peaks]) -> None:
    measure_peaks()
    file = home / "peaks.json"
    file.write_text(file.read_text().replace("1.0", "-1.0"))
    assert measure_peaks() == measured[1]


def test_the_file_stays_small(home: Path, measured: list[Peaks], monkeypatch: pytest.MonkeyPatch) -> None:
    for cores in range(1, KEPT + 3):
        monkeypatch.setattr(peaks, "usable_cores", lambda cores=cores: cores)
        measure_peaks()
    assert (home / "peaks.json").read_text().count("threads") == KEPT
    assert measure_peaks() == measured[-1]  # the newest stay


def test_where_nothing_can_be_written_it_is_measured_each_time(
    tmp_path: Path, measured: list[Peaks], monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "file" / "home"))
    assert measure_peaks() == measured[0]
    assert measure_peaks() == measured[1]


def test_without_native_code_there_are_none(measured: list[Peaks], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> Path:
        raise NativeUnavailable("there is no C++ compiler")

    monkeypatch.setattr(peaks, "build_library", fail)
    assert measure_peaks() is None
    monkeypatch.setenv(VARIABLE, "none")
    assert measure_peaks() is None
    monkeypatch.setenv(VARIABLE, "wrong")
    with pytest.raises(ConfigError):
        measure_peaks()
    assert measured == []
