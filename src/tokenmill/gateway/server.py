"""Runs the door on a socket: uvicorn, with the end of the process in our own hands."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import resource
import signal
import socket
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, TypeVar

import uvicorn

from tokenmill.core.errors import ConfigError
from tokenmill.fleet.replica import Replica
from tokenmill.gateway.app import GatewayApp
from tokenmill.gateway.protocol import BoundedHeadProtocol

log = logging.getLogger(__name__)

T = TypeVar("T")

SIGNALS = (signal.SIGTERM, signal.SIGINT)
# Clients keep idle connections for a while; the side that waits longer never meets a closed one.
KEEP_ALIVE_S = 75
# After the last delta: how long a slow reader gets to take what is already written.
FLUSH_S = 5


def run(main: Coroutine[Any, Any, T]) -> T:
    """`asyncio.run` on uvloop where it is installed."""
    try:
        import uvloop
    except ImportError:
        return asyncio.run(main)
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(main)


async def serve(
    app: GatewayApp,
    replica: Replica,
    *,
    host: str,
    port: int,
    drain_timeout: float,
    on_ready: Callable[[str], None],
) -> int:
    """Serves until SIGTERM or SIGINT, then drains; returns the exit code.

    Call it on the main thread. `on_ready` gets the URL once connections are accepted; port 0 picks a
    free one. At the first signal the sockets close, new requests on open connections get 503, and running
    answers have `drain_timeout` seconds to finish; then, or at a second signal, they are cut with an error.

    When the replica ends for good, the same happens without a signal, and the exit code is 1.

    Raises ConfigError when the address cannot be used.
    """
    allow_connections()
    sockets = bind(host, port)
    server = HttpServer(app)
    stop, hurry = asyncio.Event(), asyncio.Event()
    with _signals(lambda: hurry.set() if stop.is_set() else stop.set()):
        running = asyncio.create_task(server.serve(sockets=sockets))
        try:
            await _first(server.listening.wait(), running)
            if running.done():
                return _exit_code(running)
            on_ready(url(host, sockets[0]))
            ended = asyncio.create_task(replica.wait_ended())
            await _first(stop.wait(), running, ended)
            lost = ended.done()
            ended.cancel()
            if lost:
                log.error("the engine has ended and cannot serve again; the server stops")
            if not running.done():
                await _drain(app, replica, server, drain_timeout, hurry)
            await asyncio.wait([running])
        finally:
            server.should_exit = True
            await asyncio.wait([running])
    return _exit_code(running) or int(lost)


async def _drain(
    app: GatewayApp, replica: Replica, server: HttpServer, timeout: float, hurry: asyncio.Event
) -> None:
    app.start_draining()
    server.stop_accepting()
    draining = asyncio.create_task(replica.drain(timeout))
    hurried = asyncio.create_task(hurry.wait())
    # A replica keeps to its own time; these limits only keep a broken one from holding the process.
    await asyncio.wait([draining, hurried], timeout=timeout + FLUSH_S, return_when=asyncio.FIRST_COMPLETED)
    hurried.cancel()
    if not draining.done():
        server.config.timeout_graceful_shutdown = 1
        await asyncio.wait([asyncio.create_task(replica.close()), draining], timeout=FLUSH_S)
    if not draining.done():
        draining.cancel()
        log.error("the replica did not drain in time")
    elif (error := draining.exception()) is not None:
        log.error("draining the replica failed", exc_info=error)
    server.should_exit = True


async def _first(event: Coroutine[Any, Any, object], *tasks: asyncio.Task[Any]) -> None:
    """Waits until one of them is done, and leaves no waiter for the event behind."""
    waiter = asyncio.ensure_future(event)
    await asyncio.wait([waiter, *tasks], return_when=asyncio.FIRST_COMPLETED)
    waiter.cancel()


def _exit_code(running: asyncio.Task[None]) -> int:
    error = running.exception()
    if error is None:
        return 0
    log.error("the HTTP server failed", exc_info=error)
    return 1


class HttpServer(uvicorn.Server):
    """uvicorn without its signal handling: it would re-raise the signal and exit with 143."""

    def __init__(self, app: GatewayApp) -> None:
        config = uvicorn.Config(
            app,
            http=BoundedHeadProtocol,
            ws="none",
            lifespan="on",
            interface="asgi3",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=KEEP_ALIVE_S,
            timeout_graceful_shutdown=FLUSH_S,
        )
        super().__init__(config)
        self.listening = asyncio.Event()

    def capture_signals(self) -> AbstractContextManager[None]:  # type: ignore[override]  # no generator
        return nullcontext()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets=sockets)
        self.listening.set()

    def stop_accepting(self) -> None:
        """Closes the listening sockets; open connections stay."""
        for server in self.servers:
            server.close()


def allow_connections() -> None:
    """Raises the limit of open files to what this process may have.

    The usual 1,024 are soon taken up by connections that say nothing, and then nobody else gets one.
    """
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


@contextlib.contextmanager
def _signals(handler: Callable[[], None]) -> Iterator[None]:
    loop = asyncio.get_running_loop()
    for number in SIGNALS:
        loop.add_signal_handler(number, handler)
    try:
        yield
    finally:
        for number in SIGNALS:
            loop.remove_signal_handler(number)


def bind(host: str, port: int) -> list[socket.socket]:
    """Sockets on every address the host name stands for, all with one port. Raises ConfigError."""
    try:
        found = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    except OSError as error:
        raise ConfigError(f"--host {host} is not an address of this machine: {error.strerror}") from None
    sockets: list[socket.socket] = []
    failure: OSError | None = None
    for family, kind, protocol, _, address in dict.fromkeys(found):
        try:
            sockets.append(_listener(family, kind, protocol, (address[0], port, *address[2:])))
        except OSError as error:
            # A name may also stand for an address family that this machine does not use.
            if error.errno not in (errno.EADDRNOTAVAIL, errno.EAFNOSUPPORT):
                _close(sockets)
                raise ConfigError(_bind_failure(host, port, error)) from None
            failure = error
        else:
            port = sockets[0].getsockname()[1]
    if not sockets:
        raise ConfigError(_bind_failure(host, port, failure))
    return sockets


def _listener(family: int, kind: int, protocol: int, address: tuple[Any, ...]) -> socket.socket:
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if family == socket.AF_INET6:
            listener.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
        listener.bind(address)
    except OSError:
        listener.close()
        raise
    return listener


def _bind_failure(host: str, port: int, error: OSError | None) -> str:
    if error is None:
        return f"--host {host} is not an address of this machine"
    if error.errno == errno.EADDRINUSE:
        return f"port {port} on {host} is in use; choose another with --port, or --port 0 for any free one"
    return f"cannot listen on {host} port {port}: {error.strerror}; choose others with --host and --port"


def _close(sockets: Sequence[socket.socket]) -> None:
    for listener in sockets:
        listener.close()


def url(host: str, listener: socket.socket) -> str:
    """The address to type: a wildcard is shown as the loopback it includes."""
    shown = {"0.0.0.0": "127.0.0.1", "::": "::1", "": "127.0.0.1"}.get(host, host)  # noqa: S104
    return f"http://{f'[{shown}]' if ':' in shown else shown}:{listener.getsockname()[1]}"
