"""`tokenmill version`."""

from __future__ import annotations

import typer

from tokenmill.cli.options import Json
from tokenmill.cli.report import json_line
from tokenmill.core.version import VERSION


def command(as_json: Json = False) -> None:
    """Show the version."""
    if as_json:
        json_line({"version": VERSION})
    else:
        typer.echo(f"tokenmill {VERSION}")
