"""Native libraries, compiled at first use on a machine and cached by everything that goes into one."""

from __future__ import annotations

import ctypes
import hashlib
import logging
import platform
from collections.abc import Mapping, Sequence
from pathlib import Path

from tokenmill.core.errors import NativeUnavailable
from tokenmill.core.home import default_home
from tokenmill.hardware.compiler import (
    SANITIZE_VARIABLE,
    Compiler,
    compile_library,
    compiler_flags,
    find_compiler,
    sanitized,
)
from tokenmill.hardware.isa import Isa
from tokenmill.hardware.library_cache import cached_library, private_folder
from tokenmill.hardware.openmp import load_openmp

log = logging.getLogger(__name__)

_SUFFIXES = (".cpp", ".h")


def build_library(sources: Path, name: str, isa: Isa) -> Path:
    """The library of a folder of sources (*.cpp and *.h), compiled unless it lies in the cache.

    The cache is `native` in the home; where it cannot be written, a private folder that ends with the
    process takes its place.

    Raises:
        NativeUnavailable: there is no compiler, it fails, or nothing can be written anywhere.
    """
    return _build(sources, name, isa, default_home() / "native")


def load_library(sources: Path, name: str, isa: Isa) -> ctypes.CDLL:
    """Builds a library and loads it. Its parallel regions run in the thread pool of PyTorch.

    Raises:
        NativeUnavailable: as `build_library`, or it cannot be loaded even when it is compiled again.
    """
    load_openmp()
    if sanitized() and not hasattr(ctypes.CDLL(None), "__asan_init"):
        # The checks' runtime would end the process.
        raise NativeUnavailable(f"{SANITIZE_VARIABLE}=1 needs libasan in LD_PRELOAD; type: make sanitize")
    try:
        return ctypes.CDLL(str(build_library(sources, name, isa)))
    except OSError as error:
        # The folder's filesystem may forbid programs, or the file be another system's.
        log.warning("the native library %s is compiled again: %s", name, error)
    try:
        return ctypes.CDLL(str(_build(sources, name, isa, private_folder())))
    except OSError as error:
        raise NativeUnavailable(f"the native library {name} cannot be loaded: {error}") from None


def library_key(files: Mapping[str, bytes], compiler: Compiler, flags: Sequence[str], isa: Isa) -> str:
    """Hex digest of everything a library is made from."""
    digest = hashlib.blake2b(digest_size=12)
    made_from = [compiler.version, *compiler.command, *platform.libc_ver(), isa.name, *flags]
    parts = [text.encode() for text in made_from]
    for file, content in sorted(files.items()):
        parts += [file.encode(), content]
    for part in parts:
        digest.update(len(part).to_bytes(8, "little") + part)
    return digest.hexdigest()


def _build(sources: Path, name: str, isa: Isa, folder: Path) -> Path:
    compiler, flags = find_compiler(), compiler_flags(isa.compiler_flags)
    files = _read_sources(sources)
    file = f"{name}-{library_key(files, compiler, flags, isa)}.so"
    units = sorted(unit for unit in files if unit.endswith(".cpp"))

    def compile_to(target: Path) -> None:
        log.info("compiling the native library %s for %s", name, isa.name)
        compile_library(compiler, flags, sources, units, target)

    try:
        return cached_library(folder / file, compile_to)
    except OSError as error:
        log.warning("native code is compiled for this process alone: %s", error)
    try:
        return cached_library(private_folder() / file, compile_to)
    except OSError as error:
        raise NativeUnavailable(f"native code cannot be written to a file: {error.strerror}") from None


def _read_sources(folder: Path) -> dict[str, bytes]:
    try:
        files = {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix in _SUFFIXES}
    except OSError as error:
        raise NativeUnavailable(f"the native sources cannot be read: {error}") from None
    if not any(name.endswith(".cpp") for name in files):
        raise NativeUnavailable(f"there are no native sources (*.cpp) in {folder}")
    return files
