"""A folder of compiled libraries that processes share: whole files, each compiled by one of them.

Each file ends in a digest of the bytes before it: to load half a library kills the process instead of raising
an error. The linker's own content ends before, so the loader never looks at the digest.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock, Timeout

# Five levels of two libraries, with and without checks, and the same again of the version before.
KEPT_LIBRARIES = 32
# Another process that compiles may be stopped, or on a machine that is gone: then both compile.
LOCK_SECONDS = 300.0
ABANDONED_SECONDS = 3600.0

_DIGEST_BYTES = 16
_BUILDING = ".building-"


def cached_library(path: Path, build: Callable[[Path], None]) -> Path:
    """`path`, made by `build` first when it is missing or damaged. Processes wait for the one that builds.

    Args:
        build: writes the library to the file it is given; may leave others beside it.

    Raises:
        OSError: the folder cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    if is_whole(path):
        with contextlib.suppress(OSError):
            os.utime(path)  # the least recently used are dropped
        return path
    lock = FileLock(path.with_suffix(".lock"))
    with contextlib.suppress(Timeout, NotImplementedError):  # some filesystems have no locks
        lock.acquire(timeout=LOCK_SECONDS)
    try:
        if not is_whole(path):
            _build_aside(path, build)
            _drop_old(path.parent)
    finally:
        lock.release()
    return path


def is_whole(path: Path) -> bool:
    """Whether a library is there, complete, and from this user or the system's owner: it is code to run."""
    try:
        with path.open("rb") as file:
            owner = os.fstat(file.fileno()).st_uid
            content = file.read()
    except OSError:
        return False
    return owner in (0, os.geteuid()) and content[-_DIGEST_BYTES:] == _digest(content[:-_DIGEST_BYTES])


@functools.cache
def private_folder() -> Path:
    """A folder that ends with the process, for machines whose home cannot be written or holds no programs.

    Raises:
        OSError: there is no place for temporary files.
    """
    return Path(_private().name)


@functools.cache
def _private() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="tokenmill-native-", ignore_cleanup_errors=True)


def _build_aside(path: Path, build: Callable[[Path], None]) -> None:
    """Nobody sees the file before it is complete: it is renamed into place."""
    with tempfile.TemporaryDirectory(prefix=_BUILDING, dir=path.parent, ignore_cleanup_errors=True) as folder:
        target = Path(folder) / path.name
        build(target)
        with target.open("ab") as file:
            file.write(_digest(target.read_bytes()))
        target.replace(path)


def _drop_old(folder: Path) -> None:
    """Libraries beyond the newest, and what a killed process left. Another process may do the same."""
    libraries = sorted(folder.glob("*.so"), key=_modified, reverse=True)
    for old in libraries[KEPT_LIBRARIES:]:
        for file in (old, old.with_suffix(".lock")):
            with contextlib.suppress(OSError):
                file.unlink()
    for abandoned in folder.glob(f"{_BUILDING}*"):
        if _modified(abandoned) < time.time() - ABANDONED_SECONDS:
            shutil.rmtree(abandoned, ignore_errors=True)


def _modified(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _digest(content: bytes) -> bytes:
    return hashlib.blake2b(content, digest_size=_DIGEST_BYTES).digest()
