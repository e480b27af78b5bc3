"""`tokenmill pull MODEL`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tokenmill.cli.config import from_environment
from tokenmill.cli.options import Json
from tokenmill.cli.report import json_line, reporter


def command(
    model: Annotated[
        str, typer.Argument(metavar="MODEL", help="Catalogue name or hub id.", show_default=False)
    ],
    as_json: Json = False,
) -> None:
    """Fetch a model, check it, and show where it lies."""
    from tokenmill.core.home import default_home
    from tokenmill.models.pull import resolve

    from_environment(os.environ)
    with reporter(as_json) as progress:
        path = resolve(model, home=default_home(), progress=progress.transfer)
    if as_json:
        json_line({"event": "pulled", "model": model, "path": str(path)})
    else:
        typer.echo(path)
