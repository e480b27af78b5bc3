"""The child as its parent sees it: started, asked, ended and waited for."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import tokenmill
from tokenmill.engine.grammar.frames import read_frame, write_frame

MODULE = "tokenmill.engine.grammar.child"
LEAVE_S = 5.0


@dataclass(frozen=True)
class Ended:
    """How it ended: its status as `Popen` gives it, and the last line it wrote about itself."""

    status: int
    last_line: str = ""


class ChildProcess:
    """Runs from the beginning until `end`; not thread safe, `kill` excepted.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        # Nothing of the server's own environment: it may hold keys.
        places = (str(Path(tokenmill.__file__).parents[1]), *sys.path)
        environment = {"PYTHONPATH": os.pathsep.join(dict.fromkeys(filter(None, places)))}
        if "LD_LIBRARY_PATH" in os.environ:
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-s", "-m", MODULE],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment,
            start_new_session=True,  # an interrupt at the terminal is for the server
            bufsize=0,
        )
        self._source = _opened(self._process.stdin)
        self._sink = _opened(self._process.stdout)
        self._words = _opened(self._process.stderr)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return self._process.poll() is None

    def ask(self, message: bytes, seconds: float) -> bytes | None:
        """What it answers; None when it is dead, or died over the message.

        Raises:
            TimeoutError: no answer in time.
        """
        deadline = time.monotonic() + seconds
        try:
            write_frame(self._source.fileno(), message, deadline)
            return read_frame(self._sink.fileno(), deadline)
        except BrokenPipeError:
            return None

    def kill(self) -> None:
        """Whatever it is doing. From any thread."""
        self._process.kill()

    def end(self) -> Ended:
        """Ends it and waits for it; what is dead already tells how it died."""
        self._source.close()  # it ends with its input
        try:
            status = self._process.wait(LEAVE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            status = self._process.wait()
        lines = os.read(self._words.fileno(), 1 << 16).decode("utf-8", "replace").splitlines()
        self._sink.close()
        self._words.close()
        return Ended(status, next((line for line in reversed(lines) if line.strip()), ""))


def _opened(pipe: IO[bytes] | None) -> IO[bytes]:
    if pipe is None:
        raise ValueError("the child was started without its pipes")
    return pipe
