"""`tokenmill serve MODEL`, and the wiring of the server."""

from __future__ import annotations

import errno
import ipaddress
import logging
import socket
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tokenmill.cli.load import Loaded, load, settings
from tokenmill.cli.options import Config, Json, takes
from tokenmill.cli.report import Ready, Reporter, reporter
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags, ServerFlags

if TYPE_CHECKING:
    from tokenmill.cli.config import Settings


@takes(ServerFlags, ModelFlags)
def command(
    model: Annotated[
        str | None,
        typer.Argument(metavar="MODEL", help="Catalogue name, file, folder or hub id."),
    ] = None,
    config: Config = None,
    as_json: Json = False,
    *,
    flags: dict[str, object],
) -> None:
    """Serve a model over the OpenAI-compatible API until it is told to stop."""
    raise typer.Exit(serve_model(settings(flags, config, model, default=False), reporter(as_json)))


def serve_model(settings: Settings, reporter: Reporter) -> int:
    """Loads the model, serves it, and returns the exit code once drained.

    Raises:
        ConfigError: the address would let strangers in, or cannot be listened on.
    """
    check_address(settings.server)
    start_logging(settings.server.log_level)
    loaded = load(settings.model, settings.engine, reporter)
    reporter.memory(loaded.worker.memory.parts)
    try:
        return _serve(loaded, settings.server, reporter)
    finally:
        loaded.worker.stop()


def _serve(loaded: Loaded, server: ServerFlags, reporter: Reporter) -> int:
    import uvloop

    from tokenmill.fleet.local import LocalReplica
    from tokenmill.gateway.app import ServedModel, build_app
    from tokenmill.gateway.server import serve
    from tokenmill.observe.metrics import Metrics

    worker = loaded.worker
    replica = LocalReplica(worker, stall_timeout=server.stall_timeout)
    metrics = Metrics(loaded.name, "0")
    loaded.bus.subscribe(metrics.on_event)
    model = ServedModel(
        name=loaded.name,
        created=int(time.time()),
        tokenizer=worker.tokenizer,
        chat_template=worker.chat_template,
        replica=replica,
        max_model_len=worker.max_model_len,
        vocab_size=loaded.vocab_size,
    )
    app = build_app(
        model, bus=loaded.bus, metrics=metrics, api_key=server.api_key, max_waiting=server.max_waiting
    )

    def on_ready(url: str) -> None:
        reporter.ready(Ready(url, loaded.name, needs_key=server.api_key is not None))

    serving = serve(
        app,
        replica,
        host=server.host,
        port=server.port,
        drain_timeout=server.drain_timeout,
        on_ready=on_ready,
    )
    return uvloop.run(serving)


def check_address(server: ServerFlags) -> None:
    """Refuses an address before minutes go into loading a model for it.

    Raises:
        ConfigError: the address is not loopback and there is no key, or it cannot be listened on.
    """
    if server.api_key is None and not is_loopback(server.host):
        raise ConfigError(
            f"host {server.host} can be reached from other machines: set --api-key or TOKENMILL_API_KEY, "
            "or keep to 127.0.0.1"
        )
    where = f"{server.host} port {server.port}"
    try:
        socket.create_server((server.host, server.port), family=_family(server.host)).close()
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise ConfigError(f"{where} is in use: choose another with --port, or 0 for a free one") from None
        raise ConfigError(f"cannot listen on {where}: {error.strerror or error}") from None


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _family(host: str) -> socket.AddressFamily:
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
