"""Native libraries are compiled once, by one process, and loaded whole."""

from __future__ import annotations

import ctypes
import json
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tokenmill.core.errors import NativeUnavailable
from tokenmill.hardware.cpu import cpu_flags
from tokenmill.hardware.isa import ISAS
from tokenmill.hardware.library import build_library, load_library

PORTABLE = ISAS[-1]
ANSWER = 'extern "C" __attribute__((visibility("default"))) int answer() { return VALUE; }\n'

# Says how often the compiler ran, then runs it.
COUNTING_COMPILER = """#!/bin/sh
case "$1" in --version) ;; *) echo "$@" >> "$CALLS" ;; esac
exec c++ "$@"
"""

LOADING = """
import json, sys
from pathlib import Path
from tokenmill.hardware.cpu import cpu_flags
from tokenmill.hardware.isa import ISAS
from tokenmill.hardware.library import load_library
print(json.dumps(load_library(Path(sys.argv[1]), "answer", ISAS[-1]).answer()))
"""


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    return tmp_path / "home"


@pytest.fixture
def sources(tmp_path: Path) -> Path:
    return write_sources(tmp_path / "sources", 42)


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file with a line for every compilation and every linking."""
    script = tmp_path / "counting-c++"
    script.write_text(COUNTING_COMPILER)
    script.chmod(0o755)
    monkeypatch.setenv("CXX", str(script))
    monkeypatch.setenv("CALLS", str(tmp_path / "calls"))
    return tmp_path / "calls"


def write_sources(folder: Path, value: int) -> Path:
    folder.mkdir(exist_ok=True)
    (folder / "value.h").write_text(f"#define VALUE {value}\n")
    (folder / "answer.cpp").write_text('#include "value.h"\n' + ANSWER)
    return folder


def lines(path: Path) -> int:
    return len(path.read_text().splitlines())


def test_a_folder_of_sources_becomes_a_library(home: Path, sources: Path) -> None:
    assert load_library(sources, "answer", PORTABLE).answer() == 42
    (built,) = (home / "native").glob("*.so")
    assert built.name.startswith("answer-")


def test_it_is_compiled_once(home: Path, sources: Path, calls: Path) -> None:
    first = build_library(sources, "answer", PORTABLE)
    assert build_library(sources, "answer", PORTABLE) == first
    assert lines(calls) == 2  # one unit, and the linking


def test_a_changed_header_is_another_library(home: Path, sources: Path) -> None:
    first = build_library(sources, "answer", PORTABLE)
    write_sources(sources, 43)
    assert build_library(sources, "answer", PORTABLE) != first
    assert load_library(sources, "answer", PORTABLE).answer() == 43


def test_each_level_and_each_compiler_is_another_library(home: Path, sources: Path, calls: Path) -> None:
    paths = {build_library(sources, "answer", isa) for isa in ISAS[-2:]}
    os.environ["CXX"] += " -DEXTRA"
    paths.add(build_library(sources, "answer", PORTABLE))
    assert len(paths) == 3


def test_processes_that_race_compile_once_and_all_load_it(home: Path, sources: Path, calls: Path) -> None:
    def load(_: int) -> int:
        done = subprocess.run(
            [sys.executable, "-c", LOADING, str(sources)], capture_output=True, text=True, check=True
        )
        return int(json.loads(done.stdout))

    with ThreadPoolExecutor(3) as pool:
        assert list(pool.map(load, range(3))) == [42, 42, 42]
    assert lines(calls) == 2


@pytest.mark.parametrize("kept", [0, 100, -1])
def test_a_damaged_library_is_compiled_again(home: Path, sources: Path, kept: int) -> None:
    built = build_library(sources, "answer", PORTABLE)
    whole = built.read_bytes()
    built.unlink()
    built.write_bytes(whole[:kept])
    assert load_library(sources, "answer", PORTABLE).answer() == 42
    assert len(built.read_bytes()) == len(whole)


def test_a_changed_byte_is_noticed(home: Path, sources: Path) -> None:
    built = build_library(sources, "answer", PORTABLE)
    content = bytearray(built.read_bytes())
    content[len(content) // 2] ^= 1
    built.write_bytes(content)
    build_library(sources, "answer", PORTABLE)
    assert built.read_bytes() != bytes(content)


def test_without_a_compiler_it_says_what_to_type(
    home: Path, sources: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(NativeUnavailable, match=r"apt-get install g\+\+"):
        load_library(sources, "answer", PORTABLE)


def test_a_named_compiler_that_does_not_run_is_named(
    home: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CXX", "/nowhere/c++")
    with pytest.raises(NativeUnavailable, match="CXX=/nowhere/c"):
        load_library(sources, "answer", PORTABLE)


def test_the_compilers_first_errors_are_shown(home: Path, sources: Path) -> None:
    (sources / "answer.cpp").write_text("int answer() { return missing; }\n")
    with pytest.raises(NativeUnavailable, match=r"answer\.cpp:1:\d+: error: .*missing"):
        load_library(sources, "answer", PORTABLE)
    assert not list((home / "native").glob("*.so"))
    assert not list((home / "native").glob(".building-*"))


def test_a_folder_without_sources_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(NativeUnavailable, match="no native sources"):
        load_library(tmp_path, "answer", PORTABLE)
    with pytest.raises(NativeUnavailable, match="cannot be read"):
        load_library(tmp_path / "missing", "answer", PORTABLE)


def test_where_the_cache_cannot_be_written_the_process_has_its_own(
    tmp_path: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "file" / "home"))
    assert load_library(sources, "answer", PORTABLE).answer() == 42


def test_what_the_loader_refuses_is_compiled_into_another_folder(
    home: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a filesystem that may hold no programs."""
    real = ctypes.CDLL

    def refuse(path: str | None, mode: int = ctypes.DEFAULT_MODE) -> ctypes.CDLL:
        if path is not None and str(home) in path:
            raise OSError("failed to map segment from shared object")
        return real(path, mode)

    monkeypatch.setattr(ctypes, "CDLL", refuse)
    assert load_library(sources, "answer", PORTABLE).answer() == 42


def test_products_and_sums_are_never_contracted(home: Path, tmp_path: Path) -> None:
    """(1 + 2^-12)^2 - 1 in float32: the product's last bit is lost unless one instruction does both."""
    folder = tmp_path / "fused"
    folder.mkdir()
    (folder / "fused.cpp").write_text(
        'extern "C" __attribute__((visibility("default")))\n'
        "void fused(const float *x, const float *y, float *out) { *out = *x * *x + *y; }\n"
    )
    isa = next(isa for isa in ISAS if isa.needs.issubset(cpu_flags()))
    out = ctypes.c_float()
    load_library(folder, "fused", isa).fused(
        ctypes.byref(ctypes.c_float(1 + 2**-12)), ctypes.byref(ctypes.c_float(-1)), ctypes.byref(out)
    )
    assert out.value == 2**-11


def test_checks_without_their_runtime_are_refused_before_they_end_the_process(
    home: Path, sources: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if hasattr(ctypes.CDLL(None), "__asan_init"):
        pytest.skip("this process has the runtime")
    monkeypatch.setenv("TOKENMILL_NATIVE_SANITIZE", "1")
    with pytest.raises(NativeUnavailable, match="make sanitize"):
        load_library(sources, "answer", PORTABLE)
