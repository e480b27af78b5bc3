"""What this machine can do at most, measured once: how fast it reads memory, and multiplies int8 numbers.

Both are measured on all cores this process may use, by code for the instruction set that programs run on. The
share of them that steps reach says what is left to gain.
"""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import logging
import os
import tempfile
from pathlib import Path
from typing import Annotated

import msgspec

from tokenmill.core.errors import NativeUnavailable
from tokenmill.core.home import default_home
from tokenmill.hardware.cpu import cpu_model, last_level_cache_bytes, usable_cores
from tokenmill.hardware.isa import Isa, this_isa
from tokenmill.hardware.library import build_library, load_library
from tokenmill.hardware.memory import available_bytes

log = logging.getLogger(__name__)

SOURCES = Path(__file__).parent / "native"
READ_SECONDS, MULTIPLY_SECONDS = 0.25, 0.15
# More than caches hold, less than machines have.
CACHES_TIMES, LEAST_BYTES, MOST_BYTES = 4, 128 << 20, 1 << 30
KEPT = 16


class Peaks(msgspec.Struct, frozen=True):
    """Measured on `threads` threads at once. A multiply-add is one product added to a sum."""

    read_bytes_per_second: Annotated[float, msgspec.Meta(gt=0)]
    int8_multiply_adds_per_second: Annotated[float, msgspec.Meta(gt=0)]
    threads: int


def measure_peaks(*, fresh: bool = False) -> Peaks | None:
    """What was kept of this machine, else measured now; None where native code is unavailable.

    They are kept in `peaks.json` in the home, by CPU model, threads and instruction set. Other work on the
    machine makes them lower than they are; `fresh` measures again and replaces what is kept.

    Raises:
        ConfigError: the environment names an instruction set that is not there.
    """
    isa = this_isa()
    if isa is None:
        return None
    threads = usable_cores()
    try:
        key = _key(isa, threads)
        kept = _read()
        if not fresh and key in kept:
            return kept[key]
        peaks = _measure(isa, threads)
    except NativeUnavailable as error:
        log.info("the machine's peaks are not measured: %s", error)
        return None
    if peaks is not None:
        _write({key: peaks} | {other: kept[other] for other in list(kept)[: KEPT - 1] if other != key})
    return peaks


def _measure(isa: Isa, threads: int) -> Peaks | None:
    library = load_library(SOURCES, "peaks", isa)
    read, multiply = library.tm_read_bytes_per_second, library.tm_int8_multiply_adds_per_second
    read.argtypes, read.restype = (ctypes.c_int64, ctypes.c_int, ctypes.c_double), ctypes.c_double
    multiply.argtypes, multiply.restype = (ctypes.c_int, ctypes.c_double), ctypes.c_double
    wanted = min(max(CACHES_TIMES * last_level_cache_bytes(), LEAST_BYTES), MOST_BYTES)
    bytes_per_second = read(min(wanted, available_bytes() // 4), threads, READ_SECONDS)
    if bytes_per_second == 0.0:
        return None
    return Peaks(bytes_per_second, multiply(threads, MULTIPLY_SECONDS), threads)


def _key(isa: Isa, threads: int) -> str:
    """The library's name stands for the instruction set and for how it is measured."""
    text = f"{cpu_model()}|{threads}|{build_library(SOURCES, 'peaks', isa).name}"
    return hashlib.blake2b(text.encode(), digest_size=12).hexdigest()


def _file() -> Path:
    return default_home() / "peaks.json"


def _read() -> dict[str, Peaks]:
    """Newest first; nothing where the file is missing or damaged."""
    try:
        return msgspec.json.decode(_file().read_bytes(), type=dict[str, Peaks])
    except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
        return {}


def _write(peaks: dict[str, Peaks]) -> None:
    """Whole or not at all; where it cannot be written, the next process measures again."""
    with contextlib.suppress(OSError):
        folder = _file().parent
        folder.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=folder, prefix=".peaks-")
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(msgspec.json.encode(peaks))
            Path(name).replace(_file())
        except OSError:
            Path(name).unlink(missing_ok=True)
            raise
