"""Limits the container sets on this process (cgroup v2)."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path


def cgroup_folders(root: Path = Path("/")) -> Iterator[Path]:
    """This process's cgroup and its ancestors, innermost first. A limit holds on every one of them."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    base = root / "sys/fs/cgroup"
    for line in lines:
        hierarchy, _, path = line.partition("::")
        if hierarchy == "0":
            folder = base / path.lstrip("/")
            while folder != base and base in folder.parents:
                yield folder
                folder = folder.parent
            yield base


def cgroup_values(name: str, root: Path = Path("/")) -> Iterator[str]:
    """The content of control file `name` at each level that has it."""
    for folder in cgroup_folders(root):
        try:
            yield (folder / name).read_text().strip()
        except OSError:
            continue
