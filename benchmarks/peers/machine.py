"""Where a measurement was made."""

from __future__ import annotations

import platform
import subprocess
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
