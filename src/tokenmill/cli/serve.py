"""`tokenmill serve MODEL`, and the wiring of the server."""

from __future__ import annotations

import ipaddress
import logging
import sys
import time
from typing import TYPE_CHECKING, Annotated

import typer

from tokenmill.cli.load import INSTANCE, fetch, settings, start
from tokenmill.cli.options import Config, Json, takes
from tokenmill.cli.report import Ready, Reporter, reporter
from tokenmill.core.bus import Bus
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags, ServerFlags

if TYPE_CHECKING:
    from tokenmill.cli.config import Settings
    from tokenmill.engine.worker import EngineWorker
    from tokenmill.observe.metrics import Metrics


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
    from tokenmill.observe.metrics import Metrics

    bus = Bus()
    with reporter:
        fetched = fetch(settings.model, settings.engine, reporter)
        metrics = Metrics(fetched.name, INSTANCE)
        bus.subscribe(metrics.on_event)
        worker = start(fetched, settings.engine, bus, reporter)
    reporter.memory(worker.memory.parts)
    try:
        return _serve(worker, settings.engine.served_names[1:], bus, metrics, settings.server, reporter)
    finally:
        worker.stop()


def _serve(
    worker: EngineWorker,
    aliases: tuple[str, ...],
    bus: Bus,
    metrics: Metrics,
    server: ServerFlags,
    reporter: Reporter,
) -> int:
    from tokenmill.fleet.local import LocalReplica
    from tokenmill.gateway.app import ServedModel, build_app
    from tokenmill.gateway.server import run, serve

    replica = LocalReplica(worker, stall_timeout=server.stall_timeout)
    model = ServedModel(
        name=worker.name,
        aliases=aliases,
        created=int(time.time()),
        tokenizer=worker.tokenizer,
        chat_template=worker.chat_template,
        replica=replica,
        max_model_len=worker.max_model_len,
        vocab_size=worker.vocab_size,
        pooling=worker.pooling,
        hidden=worker.hidden,
    )
    app = build_app(model, bus=bus, metrics=metrics, api_key=server.api_key, max_waiting=server.max_waiting)

    def on_ready(url: str) -> None:
        reporter.ready(Ready(url, worker.name, needs_key=server.api_key is not None))

    serving = serve(
        app,
        replica,
        host=server.host,
        port=server.port,
        drain_timeout=server.drain_timeout,
        on_ready=on_ready,
    )
    return run(serving)


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
    from tokenmill.gateway.server import bind

    for listener in bind(server.host, server.port):
        listener.close()


def is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def start_logging(level: str) -> None:
    logging.basicConfig(
        level=level.upper(), stream=sys.stderr, format="%(asctime)s %(levelname)s %(name)s: %(message)s"
    )
