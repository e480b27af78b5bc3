"""A deterministic OpenAI-compatible server without a model: the one mock every test and benchmark uses.

Routes: POST /v1/chat/completions and /v1/completions; GET /v1/models, /health; GET /mock/counts (exact
counts), GET and POST /mock/script (read or replace the behaviour), POST /mock/reset (counts and script as
at the start).

How it behaves is a `MockScript`. A request changes it for itself with the header
`x-mock: {"ttft_s": 0.2}` or with `[[mock {"ttft_s": 0.2}]]` anywhere in its prompt, which also passes
through a gateway. Tokens are words, and the text follows from the seed and the prompt (see `mock_text`).

In a test: `async with MockServer(MockScript(gap_s=0.01)) as server: ... server.url ... server.counts`.
As a process: `python -m tokenmill.bench.mock --port 0 --json`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import itertools
import signal
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from pathlib import Path
from types import TracebackType

import msgspec

from tokenmill.bench.loop import run_loop
from tokenmill.bench.mock_answer import Answer
from tokenmill.bench.mock_counts import Account, Counts, Outcome
from tokenmill.bench.mock_frames import error_body
from tokenmill.bench.mock_http import Connection, Headers, HttpRequest
from tokenmill.bench.mock_job import Job, read_body, read_job
from tokenmill.bench.mock_script import MockScript, faults_hit, read_script, without_faults
from tokenmill.core.errors import ConfigError, InvalidRequest

COMPLETIONS = {"/v1/chat/completions": True, "/v1/completions": False}


class Slots:
    """Requests that generate at once; the others wait in order of arrival."""

    def __init__(self, limit: int | None, max_waiting: int) -> None:
        self._semaphore = asyncio.Semaphore(limit if limit is not None else sys.maxsize)
        self._max_waiting = max_waiting
        self.running = 0
        self.waiting = 0

    @property
    def full(self) -> bool:
        return self._semaphore.locked() and self.waiting >= self._max_waiting

    @contextlib.asynccontextmanager
    async def take(self) -> AsyncIterator[None]:
        self.waiting += 1
        try:
            await self._semaphore.acquire()
        finally:
            self.waiting -= 1
        self.running += 1
        try:
            yield
        finally:
            self.running -= 1
            self._semaphore.release()


class MockServer:
    """The server. `url` is set once started; `counts` may be read at any time.

    Requests in flight when the script is replaced keep theirs; those in flight at a reset count nowhere
    any more.
    """

    def __init__(self, script: MockScript | None = None, *, host: str = "127.0.0.1", port: int = 0) -> None:
        self.url = ""
        self.script = self._first_script = script or MockScript()
        self._host, self._port = host, port
        self._connections: set[Connection] = set()
        self._server: asyncio.Server | None = None
        self.reset()

    async def __aenter__(self) -> MockServer:
        await self.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(self._connect, self._host, self._port, backlog=4096)
        host, port = self._server.sockets[0].getsockname()[:2]
        self.url = f"http://{host}:{port}"

    async def close(self) -> None:
        """Stops listening and cuts every connection."""
        if self._server is not None:
            self._server.close()
        await asyncio.gather(*(connection.stop() for connection in tuple(self._connections)))
        if self._server is not None:
            await self._server.wait_closed()

    def set_script(self, script: MockScript) -> None:
        """Behaviour of the requests that come from now on, fault order counted anew."""
        self.script = script
        self._slots = Slots(script.slots, script.max_waiting)
        self._ordinals = itertools.count()

    def reset(self) -> None:
        """Counts to zero, and the script the server started with."""
        self._counts = Counts()
        self.set_script(self._first_script)

    @property
    def counts(self) -> Counts:
        self._counts.running, self._counts.waiting = self._slots.running, self._slots.waiting
        return self._counts

    def _connect(self) -> Connection:
        connection = Connection(self._handle, closed=self._connections.discard)
        self._connections.add(connection)
        return connection

    async def _handle(self, request: HttpRequest, connection: Connection) -> None:
        path = request.path.partition("?")[0]
        if path in COMPLETIONS and request.method == "POST":
            await self._complete(request, connection, chat=COMPLETIONS[path])
            return
        route = self._routes().get((request.method, path))
        if route is None:
            connection.send(
                404, error_body(f"no route {request.method} {path}", status=404, code="not_found")
            )
            return
        try:
            connection.send(200, msgspec.json.encode(route(bytes(request.body))))
        except ConfigError as error:
            connection.send(400, error_body(error.message, status=400, code=error.code))

    def _routes(self) -> dict[tuple[str, str], Callable[[bytes], object]]:
        return {
            ("GET", "/health"): lambda _: {"status": "ok"},
            ("GET", "/v1/models"): lambda _: self._models(),
            ("GET", "/mock/counts"): lambda _: self.counts,
            ("GET", "/mock/script"): lambda _: self.script,
            ("POST", "/mock/script"): self._replace_script,
            ("POST", "/mock/reset"): lambda _: self.reset(),
        }

    def _models(self) -> dict[str, object]:
        entries = [
            {"id": name, "object": "model", "created": 0, "owned_by": "mock"} for name in self.script.models
        ]
        return {"object": "list", "data": entries}

    def _replace_script(self, body: bytes) -> MockScript:
        self.set_script(read_script(body))
        return self.script

    async def _complete(self, request: HttpRequest, connection: Connection, *, chat: bool) -> None:
        ordinal = next(self._ordinals)
        request_id = request.headers.get("x-request-id") or f"mock-{ordinal}"
        key = request.headers.get("authorization", "").removeprefix("Bearer ")
        script = self.script if faults_hit(self.script, ordinal) else without_faults(self.script)
        try:
            body = read_body(request.body)
        except InvalidRequest as error:
            self._counts.open(request_id, key, "").end(_refuse_invalid(connection, error))
            return
        account = self._counts.open(request_id, key, body.user or "")
        outcome: Outcome = "reset"
        try:
            job = read_job(body, chat=chat, script=script, header=request.headers.get("x-mock"))
            outcome = await self._answer(job, connection, account, request_id)
        except InvalidRequest as error:
            outcome = _refuse_invalid(connection, error)
        except asyncio.CancelledError:
            outcome = "disconnected" if connection.gone else "reset"
            raise
        finally:
            account.end(outcome)

    async def _answer(self, job: Job, connection: Connection, account: Account, request_id: str) -> Outcome:
        script, slots = job.script, self._slots
        if script.head_delay_s:
            await asyncio.sleep(script.head_delay_s)
        if script.error_status is not None:
            return _refuse(
                connection, script.error_status, "the mock was told to refuse", "mock_error", script
            )
        if slots.full:
            return _refuse(connection, 503, "all slots are taken and the queue is full", "overloaded", script)
        async with slots.take():
            account.prompt(job.prompt_tokens)
            return await Answer(job, connection, account, request_id).run()


def _refuse(connection: Connection, status: int, message: str, code: str, script: MockScript) -> Outcome:
    headers: Headers = ()
    if script.retry_after_s is not None:
        headers = (("retry-after", f"{script.retry_after_s:g}"),)
    connection.send(status, error_body(message, status=status, code=code), headers)
    return "refused"


def _refuse_invalid(connection: Connection, error: InvalidRequest) -> Outcome:
    body = error_body(error.message, status=error.status, code=error.code, param=error.param)
    connection.send(error.status, body)
    return "refused"


async def serve_until_signalled(script: MockScript, host: str, port: int, *, json: bool) -> None:
    """Runs until SIGTERM or SIGINT; says where on stdout once it listens."""
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    async with MockServer(script, host=host, port=port) as server:
        ready = {"event": "ready", "url": server.url, "model": script.models[0]}
        line = msgspec.json.encode(ready).decode() if json else f"mock server at {server.url}"
        sys.stdout.write(line + "\n")
        sys.stdout.flush()
        await stopped.wait()


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="tokenmill.bench.mock", description="A scriptable mock model server."
    )
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8001, help="0 picks a free one")
    parser.add_argument("--script", default="{}", help="a MockScript as JSON, or @FILE")
    parser.add_argument("--json", action="store_true", help="say ready in JSON")
    chosen = parser.parse_args(arguments)
    try:
        raw = Path(chosen.script[1:]).read_text() if chosen.script.startswith("@") else chosen.script
        script = read_script(raw)
    except (OSError, ConfigError) as error:
        parser.error(str(error))
    run_loop(serve_until_signalled(script, chosen.host, chosen.port, json=chosen.json))
    return 0


if __name__ == "__main__":
    sys.exit(main())
