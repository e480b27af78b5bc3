"""Memory this process may still take, and what it holds."""

from __future__ import annotations

import os
from pathlib import Path

from tokenmill.hardware.cgroup import cgroup_folders


def available_bytes(root: Path = Path("/")) -> int:
    """Bytes that can be allocated without swapping or being killed.

    The least of the machine's available memory and what each cgroup level leaves; page cache that the
    kernel can drop counts as free.
    """
    available = _meminfo(root, "MemAvailable")
    for folder in cgroup_folders(root):
        try:
            limit = (folder / "memory.max").read_text().strip()
            used = int((folder / "memory.current").read_text())
        except (OSError, ValueError):
            continue
        if limit != "max":
            available = min(available, int(limit) - used + _droppable(folder))
    return max(0, available)


def rss_bytes(root: Path = Path("/")) -> int:
    """Resident memory of this process."""
    pages = int((root / "proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _meminfo(root: Path, key: str) -> int:
    for line in (root / "proc/meminfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name == key:
            return int(value.split()[0]) * 1024
    raise OSError(f"{key} is not in /proc/meminfo")


def _droppable(folder: Path) -> int:
    try:
        for line in (folder / "memory.stat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "inactive_file":
                return int(value)
    except OSError:
        pass
    return 0
