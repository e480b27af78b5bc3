"""Servers as child processes: started, waited for, and stopped."""

from __future__ import annotations

import asyncio
import signal
import sys
from collections.abc import Sequence
from types import TracebackType

import msgspec

from tokenmill.core.errors import TokenmillError

STOP_TIMEOUT_S = 60.0


class _Line(msgspec.Struct):
    event: str = ""
    url: str = ""
    model: str = ""


class ServerProcess:
    """A command that prints JSON lines, the last of them `{"event": "ready", "url": ..., "model": ...}`.

    Use with `async with`; `url` and `model` are set inside. Leaving sends SIGTERM, and SIGKILL to what has
    not ended STOP_TIMEOUT_S later. `exit_code` is set then.
    """

    def __init__(self, command: Sequence[str], *, ready_timeout_s: float = 300.0) -> None:
        self.url = ""
        self.model = ""
        self.pid = 0
        self.exit_code: int | None = None
        self._command = command
        self._ready_timeout_s = ready_timeout_s

    async def __aenter__(self) -> ServerProcess:
        self._process = await asyncio.create_subprocess_exec(*self._command, stdout=asyncio.subprocess.PIPE)
        self.pid = self._process.pid
        try:
            async with asyncio.timeout(self._ready_timeout_s):
                await self._wait_ready()
        except BaseException:
            await self.stop()
            raise
        self._drain = asyncio.create_task(self._read_on())
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.stop()
        await self._drain

    async def stop(self) -> None:
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                self.exit_code = await self._process.wait()
        except TimeoutError:
            self._process.kill()
            self.exit_code = await self._process.wait()

    async def _wait_ready(self) -> None:
        """Raises TokenmillError when the process ends first; its stderr is this process's own."""
        while True:
            raw = await self._next_line()
            if not raw:
                code = await self._process.wait()
                raise TokenmillError(f"the server ended with code {code} before it was ready")
            line = _read(raw)
            if line.event == "ready":
                self.url, self.model = line.url, line.model
                return

    async def _next_line(self) -> bytes:
        if self._process.stdout is None:
            return b""
        return await self._process.stdout.readline()

    async def _read_on(self) -> None:
        """A full pipe would stop the server."""
        while await self._next_line():
            pass


def tokenmill_command(model: str, *flags: str) -> list[str]:
    """`tokenmill serve` with this interpreter, on a free port."""
    start = "from tokenmill.cli.app import main; main()"
    return [sys.executable, "-c", start, "serve", model, "--port", "0", "--json", *flags]


def mock_command(*flags: str) -> list[str]:
    """The mock as a process, on a free port."""
    return [sys.executable, "-m", "tokenmill.bench.mock", "--port", "0", "--json", *flags]


def _read(raw: bytes) -> _Line:
    try:
        return msgspec.json.decode(raw, type=_Line)
    except msgspec.MsgspecError:
        return _Line()
