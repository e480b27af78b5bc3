"""`tokenmill up`."""

from __future__ import annotations

import typer

from tokenmill.cli.load import settings
from tokenmill.cli.options import Config, Json, takes
from tokenmill.cli.report import reporter
from tokenmill.cli.serve import serve_model
from tokenmill.core.flags import ModelFlags, ServerFlags


@takes(ServerFlags, ModelFlags)
def command(config: Config = None, as_json: Json = False, *, flags: dict[str, object]) -> None:
    """Fetch, load and serve a model: the default one unless the configuration names another."""
    raise typer.Exit(serve_model(settings(flags, config, None, default=True), reporter(as_json)))
