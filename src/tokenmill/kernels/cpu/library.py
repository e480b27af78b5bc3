"""The native library of the step program, for the instruction set of this machine."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

from tokenmill.hardware.isa import Isa
from tokenmill.hardware.library import load_library
from tokenmill.kernels.cpu.abi import declare

SOURCES = Path(__file__).parent / "native"


@cache
def step_library(isa: Isa) -> ctypes.CDLL:
    """Compiled unless it is cached, with its functions' types declared.

    Raises:
        NativeUnavailable: there is no compiler, or it fails.
    """
    return declare(load_library(SOURCES, "step", isa))
