"""`tokenmill models`."""

from __future__ import annotations

from tokenmill.cli.options import Json


def command(as_json: Json = False) -> None:
    """List the models that can be named, and which of them are installed."""
