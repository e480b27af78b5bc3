"""The system's C++ compiler: finding it, and one shared library out of a folder of sources."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import NativeUnavailable
from tokenmill.hardware.cpu import usable_cores

SANITIZE_VARIABLE = "TOKENMILL_NATIVE_SANITIZE"
COMPILE_SECONDS = 600.0
ERROR_LINES = 5

# No -ffast-math: sums keep the order they are written in, so that a row's result never depends on the batch.
_FLAGS = ("-O3", "-std=c++17", "-fPIC", "-fopenmp", "-fvisibility=hidden")
_ARITHMETIC = ("-fno-math-errno", "-fno-trapping-math", "-ffp-contract=off")
_SANITIZE = (
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=undefined",
    "-fno-omit-frame-pointer",
    "-g",
    "-O1",
)


@dataclass(frozen=True)
class Compiler:
    """A command that compiles C++, and the first line of what it says about its version."""

    command: tuple[str, ...]
    version: str


def find_compiler() -> Compiler:
    """$CXX, else the first GCC among c++ and g++, else a clang.

    GCC comes first because its code uses the OpenMP runtime PyTorch brings along, clang's another one.

    Raises:
        NativeUnavailable: there is none, or $CXX does not run.
    """
    named = os.environ.get("CXX")
    if named:
        command = tuple(shlex.split(named))
        version = _version(command)
        if version is None:
            raise NativeUnavailable(f"the compiler CXX={named} does not run")
        return Compiler(command, version)
    found = [
        Compiler((path,), version)
        for name in ("c++", "g++", "clang++")
        if (path := shutil.which(name)) and (version := _version((path,))) is not None
    ]
    if not found:
        raise NativeUnavailable(
            "there is no C++ compiler; install one, with apt-get install g++ or what this system has for that"
        )
    return min(found, key=lambda compiler: "clang" in compiler.version)


def sanitized() -> bool:
    """Whether native code is compiled with checks of addresses and undefined behaviour."""
    return os.environ.get(SANITIZE_VARIABLE) == "1"


def compiler_flags(isa_flags: Sequence[str]) -> tuple[str, ...]:
    """All flags of a compilation and of the linking after it."""
    checks = _SANITIZE if sanitized() else ()
    return (*_FLAGS, *_ARITHMETIC, *isa_flags, *checks)


def compile_library(
    compiler: Compiler, flags: Sequence[str], sources: Path, units: Sequence[str], target: Path
) -> None:
    """Compiles the files `units` of a folder side by side and links them into `target`.

    Objects are left beside the target.

    Raises:
        NativeUnavailable: the compiler fails; the message has its first errors.
        OSError: an object cannot be written.
    """
    objects = [str(target.with_name(f"{place}.o")) for place in range(len(units))]

    def compile_unit(pair: tuple[str, str]) -> None:
        unit, output = pair
        _run([*compiler.command, *flags, "-c", unit, "-o", output], sources)

    with ThreadPoolExecutor(usable_cores()) as pool:
        list(pool.map(compile_unit, zip(units, objects, strict=True)))
    _run([*compiler.command, *flags, "-shared", *objects, "-o", str(target)], sources)


def _version(command: Sequence[str]) -> str | None:
    try:
        done = subprocess.run(
            [*command, "--version"], capture_output=True, text=True, errors="replace", timeout=60.0
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    lines = done.stdout.splitlines()
    return lines[0] if done.returncode == 0 and lines else None


def _run(command: list[str], folder: Path) -> None:
    """Runs the compiler in the folder of the sources, so that its messages name files without folders."""
    environment = {**os.environ, "LC_ALL": "C"}
    environment.pop("LD_PRELOAD", None)  # what is meant for this process would slow the compiler, or end it
    try:
        done = subprocess.run(
            command,
            cwd=folder,
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=COMPILE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        raise NativeUnavailable(f"{command[0]} took more than {COMPILE_SECONDS:.0f} s") from None
    except OSError as error:
        raise NativeUnavailable(f"{command[0]} does not run: {error.strerror}") from None
    if done.returncode != 0:
        raise NativeUnavailable(f"{command[0]} failed: {_first_errors(done.stderr, done.returncode)}")


def _first_errors(output: str, code: int) -> str:
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if "error" in line] or lines
    return "; ".join(errors[:ERROR_LINES]) or f"exit code {code} and no message"
