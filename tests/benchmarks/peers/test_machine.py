from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.machine import busy_between, busy_share, describe


def test_waiting_for_disks_is_not_work() -> None:
    before, after = "cpu  100 0 50 1000 20 0 5 0 0 0\ncpu0 1 2", "cpu  130 0 60 1150 20 0 15 0 0 0\ncpu0 3 4"
    # Of 200 ticks 150 were idle.
    assert busy_between(before, after) == pytest.approx(0.25)


def test_an_idle_machine_is_not_busy() -> None:
    line = "cpu  100 0 50 1000 20 0 5 0 0 0"
    assert busy_between(line, line.replace("1000", "1200")) == 0


def test_nobody_tells(tmp_path: Path) -> None:
    assert busy_share(0, tmp_path / "stat") is None


def test_the_machine_is_named_by_what_the_system_tells(tmp_path: Path) -> None:
    (tmp_path / "proc").mkdir()
    (tmp_path / "proc/cpuinfo").write_text("model name\t: Fast CPU\nflags\t\t: sse avx2 avx512f\n")
    (tmp_path / "proc/meminfo").write_text("MemTotal:  1024 kB\n")
    found = describe(tmp_path)
    assert (found["cpu"], found["instruction_sets"], found["memory"]) == (
        "Fast CPU",
        ["avx2", "avx512f"],
        "1024 kB",
    )
