"""Where a measurement was made."""

from __future__ import annotations

import platform
import subprocess
import time
from pathlib import Path

from tokenmill.hardware.cpu import cpu_flags, usable_cores

_TOLD = ("avx2", "avx_vnni", "avx512f", "avx512_vnni", "avx512_bf16", "amx_int8", "amx_bf16")


def describe(root: Path = Path("/")) -> dict[str, object]:
    """Processor, cores, instruction sets that matter, memory and system."""
    return {
        "cpu": _first(root / "proc/cpuinfo", "model name") or platform.processor(),
        "cores": usable_cores(root),
        "instruction_sets": [flag for flag in _TOLD if flag in cpu_flags(root)],
        "memory": _first(root / "proc/meminfo", "MemTotal"),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def busy_share(seconds: float = 1.0, path: Path = Path("/proc/stat")) -> float | None:
    """Share of all cores that others take, seen while this process waits; None where nobody tells."""
    try:
        before = path.read_text()
        time.sleep(seconds)
        return busy_between(before, path.read_text())
    except OSError:
        return None


def busy_between(before: str, after: str) -> float:
    """From two readings of /proc/stat, whose first line counts ticks (user nice system idle iowait)."""
    earlier, later = (
        [int(ticks) for ticks in text.split("\n", 1)[0].split()[1:]] for text in (before, after)
    )
    spent = [end - start for start, end in zip(earlier, later, strict=True)]
    return 1 - (spent[3] + spent[4]) / max(1, sum(spent))


def commit() -> str:
    """The commit this tree is at, with + where it was changed since; empty outside of a repository."""
    command = ["git", "describe", "--always", "--dirty=+", "--abbrev=12"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, cwd=Path(__file__).parent)
    except OSError:
        return ""
    return done.stdout.strip()


def _first(path: Path, key: str) -> str:
    """The first value of `key` in a file of `key: value` lines, empty where there is none."""
    try:
        text = path.read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() == key:
            return value.strip()
    return ""
