"""How many cores this process may really use, and what they can multiply."""

from __future__ import annotations

import math
import os
from pathlib import Path

from tokenmill.hardware.cgroup import cgroup_values


def usable_cores(root: Path = Path("/")) -> int:
    """Cores by affinity, cut by the cgroup's CPU quota. At least 1."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for text in cgroup_values("cpu.max", root):
        quota, _, period = text.partition(" ")
        if quota != "max" and period:
            cores = min(cores, math.ceil(int(quota) / int(period)))
    return max(1, cores)


def cpu_flags(root: Path = Path("/")) -> frozenset[str]:
    """Feature flags of the first processor, empty where the system does not tell."""
    return frozenset(_cpuinfo(root, "flags", "Features").split())


def cpu_model(root: Path = Path("/")) -> str:
    """What the first processor is called, empty where the system does not tell."""
    return _cpuinfo(root, "model name", "CPU part")


def last_level_cache_bytes(root: Path = Path("/")) -> int:
    """Bytes of all third-level caches together; 0 where the system does not tell."""
    caches = {}
    for index in root.glob("sys/devices/system/cpu/cpu[0-9]*/cache/index3"):
        try:
            kibibytes = (index / "size").read_text().strip().removesuffix("K")
            caches[(index / "shared_cpu_list").read_text()] = int(kibibytes) << 10
        except (OSError, ValueError):
            continue
    return sum(caches.values())


def multiplies_bfloat16(root: Path = Path("/")) -> bool:
    """Whether bfloat16 products are native, so that they are faster than float32's."""
    return bool(cpu_flags(root) & {"avx512_bf16", "amx_bf16", "bf16"})


def _cpuinfo(root: Path, *names: str) -> str:
    """The first value of /proc/cpuinfo that has one of the names (x86's or ARM's)."""
    try:
        text = (root / "proc/cpuinfo").read_text()
    except OSError:
        return ""
    for line in text.splitlines():
        name, _, value = line.partition(":")
        if name.strip() in names:
            return value.strip()
    return ""
