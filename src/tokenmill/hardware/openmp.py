"""The OpenMP runtime PyTorch brings along, which native code shares.

Two runtimes are two pools of threads, each of which believes the cores to be its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import functools
import importlib.util
import os
from collections.abc import Iterator
from pathlib import Path

SPIN_VARIABLE = "GOMP_SPINCOUNT"
# Turns of 40 ns: threads wait 0.2 ms for the next region, then sleep. The runtime's own 300,000 keep every
# core busy for 11 ms after the last one.
SPIN_TURNS = 5_000
# The user's own choice: either says how long threads wait.
_WAITING = (SPIN_VARIABLE, "OMP_WAIT_POLICY")


@functools.cache
def load_openmp() -> bool:
    """Loads PyTorch's own libgomp before any other copy; whether there is one.

    PyTorch finds it loaded already when it is imported later. When it was imported before, nothing happens,
    and how long threads wait is as it was. The copy's names are global: they win over those of another copy
    that a library asks for.
    """
    found = importlib.util.find_spec("torch")
    if found is None or found.origin is None:
        return False
    with _short_waits():
        return any(_load(path) for path in sorted((Path(found.origin).parent / "lib").glob("libgomp*.so*")))


def _load(runtime: Path) -> bool:
    try:
        ctypes.CDLL(str(runtime), mode=ctypes.RTLD_GLOBAL)
    except OSError:
        return False
    return True


@contextlib.contextmanager
def _short_waits() -> Iterator[None]:
    """The runtime reads the environment when it is loaded; child processes inherit nothing of this."""
    if any(name in os.environ for name in _WAITING):
        yield
        return
    os.environ[SPIN_VARIABLE] = str(SPIN_TURNS)
    try:
        yield
    finally:
        del os.environ[SPIN_VARIABLE]
