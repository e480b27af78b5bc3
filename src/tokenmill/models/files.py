"""Putting large files in place: progress, checksums, room on disk, and one process at a time."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from tokenmill.core.errors import DownloadError

CHUNK_BYTES = 1 << 20
SPARE_DISK_BYTES = 64 << 20
LOCK_POLL_SECONDS = 0.2


@dataclass(frozen=True)
class Progress:
    """How far something is.

    Attributes:
        phase: fetch, verify or copy.
        source: what is being fetched, for people.
        total_bytes: None where the size is not known, also while waiting for another process.
        seconds: since the phase began.
    """

    phase: str
    source: str
    done_bytes: int
    total_bytes: int | None
    seconds: float


OnProgress = Callable[[Progress], None]


class Meter:
    """Reports one phase."""

    def __init__(self, phase: str, source: str, total_bytes: int | None, report: OnProgress) -> None:
        self.total_bytes = total_bytes
        self._phase, self._source, self._report = phase, source, report
        self._started = time.monotonic()

    def at(self, done_bytes: int) -> None:
        seconds = time.monotonic() - self._started
        self._report(Progress(self._phase, self._source, done_bytes, self.total_bytes, seconds))


def sha256_of(path: Path, source: str, report: OnProgress) -> str:
    """Hex digest of a file."""
    return _hexdigest(hashlib.sha256(), path, source, report)


def git_blob_of(path: Path, source: str, report: OnProgress) -> str:
    """The id git gives a file: SHA-1 over "blob", its size and its content."""
    digest = hashlib.sha1(b"blob %d\0" % path.stat().st_size, usedforsecurity=False)
    return _hexdigest(digest, path, source, report)


def _hexdigest(digest: hashlib._Hash, path: Path, source: str, report: OnProgress) -> str:
    done = 0
    meter = Meter("verify", source, path.stat().st_size, report)
    with path.open("rb") as file:
        while chunk := file.read(CHUNK_BYTES):
            digest.update(chunk)
            done += len(chunk)
            meter.at(done)
    return digest.hexdigest()


def need_room(folder: Path, size: int) -> None:
    """Refuses a file the disk has no room for.

    Raises:
        DownloadError: fewer than `size` bytes and a little more are free.
    """
    free = shutil.disk_usage(folder).free
    if free < size + SPARE_DISK_BYTES:
        raise DownloadError(
            f"not enough disk space: {size + SPARE_DISK_BYTES} bytes are needed and {free} are free; "
            "free some, or set TOKENMILL_HOME to a folder on a larger disk"
        )


def make_folder(folder: Path) -> None:
    """Creates a folder of the home, with its parents."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DownloadError(
            f"the model folder cannot be written: {error.strerror}; set TOKENMILL_HOME to one that can"
        ) from None


def settle(written: Path, target: Path) -> None:
    """Gives a completely written file its name. A crash leaves the old state or the new one."""
    with written.open("rb") as file:
        os.fsync(file.fileno())
    written.replace(target)


@contextmanager
def only_one(target: Path, source: str, report: OnProgress) -> Iterator[None]:
    """Holds the lock beside `target`, waiting as long as another process does.

    The lock ends with its process, however that ends.
    """
    make_folder(target.parent)
    lock = FileLock(target.with_name(target.name + ".lock"))
    meter = Meter("fetch", f"{source} (another process is at it)", None, report)
    while True:
        try:
            lock.acquire(timeout=LOCK_POLL_SECONDS)
            break
        except Timeout:
            meter.at(0)
        except OSError as error:
            raise DownloadError(f"the model folder cannot be locked: {error.strerror}") from None
    try:
        yield
    finally:
        lock.release()
