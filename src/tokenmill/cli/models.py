"""`tokenmill models`."""

from __future__ import annotations

import os

from rich.console import Console
from rich.table import Table

from tokenmill.cli.config import from_environment
from tokenmill.cli.options import Json
from tokenmill.cli.report import json_line, size


def command(as_json: Json = False) -> None:
    """List the models that can be fetched by name, and those installed."""
    from tokenmill.core.home import default_home
    from tokenmill.models.catalogue import CATALOGUE
    from tokenmill.models.pull import installed

    from_environment(os.environ)
    here = {model.name: model for model in installed(default_home())}
    rows: list[dict[str, object]] = [
        {
            "name": name,
            "summary": CATALOGUE[name].summary if name in CATALOGUE else "",
            "license": CATALOGUE[name].license if name in CATALOGUE else "",
            "bytes": here[name].bytes if name in here else CATALOGUE[name].bytes,
            "path": str(here[name].path) if name in here else None,
        }
        for name in sorted({*CATALOGUE, *here})
    ]
    if as_json:
        for row in rows:
            json_line(row)
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("name", "size", "installed", "about"):
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(
            str(row["name"]),
            size(int(str(row["bytes"]))),
            "yes" if row["path"] else "no",
            str(row["summary"]),
        )
    Console(highlight=False).print(table)
