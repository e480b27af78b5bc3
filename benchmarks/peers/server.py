"""A rival's server: started on a free port, waited for, stopped."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import tempfile
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import IO

from benchmarks.peers.contender import PeerFailed, last_words
from tokenmill.bench.asking import ServerFailed, get

POLL_S = 0.25
STOP_TIMEOUT_S = 30.0


def free_port() -> int:
    """A port of the loopback interface that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@asynccontextmanager
async def serving(
    command: Sequence[str],
    port: int,
    *,
    ready_timeout_s: float,
    environment: Mapping[str, str] | None = None,
) -> AsyncGenerator[str]:
    """Runs a server that answers `/health` with 200 once it is ready; gives its URL.

    Raises:
        PeerFailed: it cannot be started, ended, or was not ready in time.
    """
    with tempfile.TemporaryFile() as log:
        try:
            process = await asyncio.create_subprocess_exec(
                *command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **(environment or {})},
                start_new_session=True,
            )
        except OSError as error:
            raise PeerFailed(f"{command[0]} cannot be started: {error.strerror}") from None
        url = f"http://127.0.0.1:{port}"
        try:
            await _ready(process, url, log, ready_timeout_s)
            yield url
        finally:
            await _stop(process)


async def _ready(process: asyncio.subprocess.Process, url: str, log: IO[bytes], timeout_s: float) -> None:
    try:
        async with asyncio.timeout(timeout_s):
            while not await _healthy(url):
                if process.returncode is not None:
                    log.seek(0)
                    raise PeerFailed(f"ended with code {process.returncode}: {last_words(log.read())}")
                await asyncio.sleep(POLL_S)
    except TimeoutError:
        raise PeerFailed(f"was not ready after {timeout_s:.0f} s") from None


async def _healthy(url: str) -> bool:
    try:
        await get(url, "/health", {})
    except ServerFailed:
        return False
    return True


async def _stop(process: asyncio.subprocess.Process) -> None:
    """Ends the process, and with it whatever of its own session is left when it has gone."""
    if process.returncode is None:
        process.terminate()
        try:
            async with asyncio.timeout(STOP_TIMEOUT_S):
                await process.wait()
        except TimeoutError:
            process.kill()
            await process.wait()
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
