"""What the machine and its containers leave to this process, read from a made-up root."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.hardware.cpu import (
    cpu_flags,
    cpu_model,
    last_level_cache_bytes,
    multiplies_bfloat16,
    usable_cores,
)
from tokenmill.hardware.memory import available_bytes, rss_bytes

MIB = 1 << 20


@pytest.fixture
def root(tmp_path: Path) -> Path:
    write(tmp_path, "proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n")
    write(tmp_path, "proc/self/cgroup", "0::/outer/inner\n")
    return tmp_path


def write(root: Path, name: str, text: str) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def limit(root: Path, group: str, maximum: str, used: int, cache: int) -> None:
    folder = f"sys/fs/cgroup/{group}"
    write(root, f"{folder}/memory.max", f"{maximum}\n")
    write(root, f"{folder}/memory.current", f"{used}\n")
    write(root, f"{folder}/memory.stat", f"anon 1\ninactive_file {cache}\n")


def test_without_limits_the_machine_decides(root: Path) -> None:
    assert available_bytes(root) == 4096 * MIB


def test_the_tightest_level_decides_and_droppable_cache_counts_as_free(root: Path) -> None:
    limit(root, "outer/inner", "max", 900 * MIB, 0)
    limit(root, "outer", str(1000 * MIB), 900 * MIB, 300 * MIB)
    assert available_bytes(root) == 400 * MIB


def test_an_exhausted_limit_leaves_nothing(root: Path) -> None:
    limit(root, "outer/inner", str(100 * MIB), 200 * MIB, 0)
    assert available_bytes(root) == 0


def test_resident_memory_is_in_bytes() -> None:
    status = Path("/proc/self/status").read_text()
    kib = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1])
    assert rss_bytes() == pytest.approx(kib * 1024, rel=0.2)


def test_a_quota_cuts_the_cores_rounded_up(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores(root) == 8
    write(root, "sys/fs/cgroup/outer/cpu.max", "250000 100000\n")
    assert usable_cores(root) == 3
    write(root, "sys/fs/cgroup/outer/inner/cpu.max", "max 100000\n")
    assert usable_cores(root) == 3
    write(root, "sys/fs/cgroup/outer/inner/cpu.max", "10000 100000\n")
    assert usable_cores(root) == 1


@pytest.mark.parametrize(
    ("line", "native"),
    [("flags\t\t: fpu avx512_bf16", True), ("flags\t\t: fpu avx2", False), ("Features\t: asimd bf16", True)],
)
def test_native_bfloat16_is_read_from_the_flags(root: Path, line: str, native: bool) -> None:
    write(root, "proc/cpuinfo", f"processor\t: 0\n{line}\n")
    assert multiplies_bfloat16(root) is native


def test_a_system_that_does_not_tell_has_no_flags(tmp_path: Path) -> None:
    assert cpu_flags(tmp_path) == frozenset()


def test_the_system_tells_the_model_and_its_caches(root: Path) -> None:
    assert (cpu_model(root), last_level_cache_bytes(root)) == ("", 0)
    write(root, "proc/cpuinfo", "processor : 0\nmodel name\t: AMD EPYC\n\nmodel name : other\n")
    for cpu, shared in enumerate(("0-1", "0-1", "2-3", "2-3")):
        cache = f"sys/devices/system/cpu/cpu{cpu}/cache/index3"
        write(root, f"{cache}/size", "32768K\n")
        write(root, f"{cache}/shared_cpu_list", f"{shared}\n")
    assert (cpu_model(root), last_level_cache_bytes(root)) == ("AMD EPYC", 64 * MIB)
