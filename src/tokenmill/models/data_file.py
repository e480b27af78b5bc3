"""Read-only access to one file that someone else may have written in bad faith."""

from __future__ import annotations

import contextlib
import mmap
import os
import stat
from collections.abc import Iterator
from pathlib import Path

from tokenmill.core.errors import ModelFileError


class DataFile:
    """An open regular file. Headers are parsed through a mapping, tensors are read with `pread`.

    `pread` and not the mapping, because a file that shrinks while it is mapped kills the process, and
    because pages read through a mapping stay resident until it is closed.

    Attributes:
        name: file name without its folder, for messages.
        size: bytes at the time of opening.
    """

    def __init__(self, path: Path) -> None:
        self.name = path.name
        try:
            # O_NONBLOCK: opening a named pipe must not hang before fstat can refuse it.
            self._fd: int | None = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
        except OSError as error:
            raise ModelFileError(f"{self.name}: cannot be opened ({error.strerror})") from error
        status = os.fstat(self._fd)
        if not stat.S_ISREG(status.st_mode):
            self.close()
            raise ModelFileError(f"{self.name}: not a regular file")
        self.size = status.st_size

    @contextlib.contextmanager
    def mapped(self, length: int) -> Iterator[memoryview]:
        """The first `length` bytes, at most the whole file, mapped while the context lasts."""
        length = min(length, self.size)
        if length == 0:
            yield memoryview(b"")
            return
        pages = mmap.mmap(self._descriptor(), length, access=mmap.ACCESS_READ)
        with pages, memoryview(pages) as view:
            yield view

    def read_into(self, buffer: memoryview, offset: int) -> None:
        """Fills a writable byte buffer from `offset`.

        Raises:
            ModelFileError: the file ends before the buffer is full.
        """
        done = 0
        while done < len(buffer):
            count = os.preadv(self._descriptor(), [buffer[done:]], offset + done)
            if count == 0:
                raise ModelFileError(f"{self.name}: ends at byte {offset + done}; it was longer when opened")
            done += count

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _descriptor(self) -> int:
        if self._fd is None:
            raise ModelFileError(f"{self.name}: closed")
        return self._fd
