"""`tokenmill peaks`."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tokenmill.cli.config import from_environment
from tokenmill.cli.options import Json
from tokenmill.cli.report import json_line, peaks_line, peaks_record
from tokenmill.core.errors import NativeUnavailable


def command(
    fresh: Annotated[bool, typer.Option("--fresh", help="Measure again, and keep the new figures.")] = False,
    as_json: Json = False,
) -> None:
    """Measure how fast this machine reads memory and multiplies int8 numbers.

    The figures are kept; steps of the engine are compared with them.
    """
    from tokenmill.hardware.isa import VARIABLE, this_isa
    from tokenmill.hardware.peaks import measure_peaks

    from_environment(os.environ)
    isa = this_isa()
    if isa is None:
        raise NativeUnavailable(f"native code is switched off ({VARIABLE}=none)")
    peaks = measure_peaks(fresh=fresh)
    if peaks is None:
        raise NativeUnavailable("the peaks cannot be measured here; tokenmill serve says why in its log")
    if as_json:
        json_line(peaks_record(isa.name, peaks))
    else:
        typer.echo(peaks_line(isa.name, peaks))
