"""`tokenmill version`."""

from __future__ import annotations

import typer

from tokenmill import __version__
from tokenmill.cli.options import Json
from tokenmill.cli.report import json_line


def command(as_json: Json = False) -> None:
    """Show the version."""
    if as_json:
        json_line({"version": __version__})
    else:
        typer.echo(f"tokenmill {__version__}")
