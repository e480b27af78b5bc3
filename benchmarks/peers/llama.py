"""llama.cpp: `llama-batched-bench` for the rows without a server, `llama-server` for the one with."""

from __future__ import annotations

import asyncio
import os
import shutil
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from benchmarks.peers.contender import Figures, PeerFailed, run
from benchmarks.peers.environments import INSTALL_TIMEOUT_S, Environment, fetch_source, say
from benchmarks.peers.http_load import load
from benchmarks.peers.model_files import ModelFiles
from benchmarks.peers.rows import Row
from benchmarks.peers.server import free_port, serving

# llama.cpp itself is on no package index; the source of its Python bindings holds it whole.
PACKAGE, VERSION = "llama-cpp-python", "0.3.36"
PROGRAMS = ("llama-batched-bench", "llama-server", "llama-quantize")
_SWITCHES = {
    "CMAKE_BUILD_TYPE": "Release",
    "GGML_NATIVE": "ON",
    "BUILD_SHARED_LIBS": "OFF",
    "LLAMA_BUILD_TOOLS": "ON",
    "LLAMA_BUILD_SERVER": "ON",
    "LLAMA_BUILD_APP": "OFF",
    "LLAMA_BUILD_EXAMPLES": "OFF",
    "LLAMA_BUILD_MTMD": "OFF",
    "LLAMA_BUILD_TESTS": "OFF",
    "LLAMA_BUILD_UI": "OFF",
    "LLAMA_OPENSSL": "OFF",
}
BENCH_TIMEOUT_S = 600.0
READY_TIMEOUT_S = 120.0
QUANTIZE_TIMEOUT_S = 600.0
Quantization = Literal["q4_1", "q4_0", "q8_0"]


class Build:
    """llama.cpp built for this machine from source."""

    def __init__(self, home: Path) -> None:
        self._folder = home / "llama.cpp"

    def program(self, name: str) -> Path:
        return self._folder / "build" / "bin" / name

    def make(self) -> None:
        """Raises PeerFailed."""
        if all(self.program(name).exists() for name in PROGRAMS):
            return
        source = self._folder / "src"
        if not source.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            fetch_source(PACKAGE, VERSION, source)
        say("building llama.cpp for this machine; this takes minutes")
        cmake, ninja = self._tool("cmake"), self._tool("ninja")
        build = str(self._folder / "build")
        switches = [f"-D{name}={value}" for name, value in _SWITCHES.items()]
        configure = [cmake, "-S", str(source / "vendor" / "llama.cpp"), "-B", build, "-G", "Ninja"]
        run([*configure, f"-DCMAKE_MAKE_PROGRAM={ninja}", *switches], timeout_s=INSTALL_TIMEOUT_S)
        run([cmake, "--build", build, "--target", *PROGRAMS], timeout_s=INSTALL_TIMEOUT_S)

    def _tool(self, name: str) -> str:
        found = shutil.which(name)
        if found is not None:
            return found
        tools = Environment(self._folder / "tools", ("cmake==4.*", "ninja==1.*"))
        tools.make()
        return str(tools.folder / "bin" / name)

    def quantize(self, source: Path, path: Path, quantization: Quantization) -> None:
        """Writes a model again in another format, by way of F32. Raises PeerFailed."""
        fresh = path.with_name(path.name + ".new")
        names = [str(source), str(fresh), quantization.upper(), str(os.cpu_count() or 1)]
        command = [str(self.program("llama-quantize")), "--allow-requantize", *names]
        run(command, timeout_s=QUANTIZE_TIMEOUT_S)
        fresh.rename(path)


class LlamaCpp:
    """llama.cpp with the weights in one format; `q4_1` is the file as it is published."""

    version = f"{PACKAGE} {VERSION}"

    def __init__(self, home: Path, files: ModelFiles, quantization: Quantization) -> None:
        self.name = f"llama.cpp-{quantization}"
        self._build = Build(home)
        self._files = files
        self._quantization = quantization
        self._model = files.folder / f"{quantization}.gguf"

    def prepare(self) -> None:
        self._build.make()
        published = self._files.published()
        if self._quantization == "q4_1":
            self._model = published
        elif not self._model.exists():
            self._build.quantize(published, self._model, self._quantization)

    def measure(self, rows: Sequence[Row], seed: int) -> Iterator[tuple[Row, Figures | PeerFailed]]:
        for row in rows:
            try:
                yield row, self._serve(row, seed) if row.kind == "http" else self._bench(row)
            except PeerFailed as failed:
                yield row, failed

    def _bench(self, row: Row) -> Figures:
        bench = str(self._build.program("llama-batched-bench"))
        done = run([bench, "-m", str(self._model), *bench_flags(row)], timeout_s=BENCH_TIMEOUT_S)
        return {"tokens_per_s": bench_rate(row, done.stdout)}

    def _serve(self, row: Row, seed: int) -> Figures:
        port = free_port()
        context = row.streams * (row.prompt_tokens + row.output_tokens)
        command = [str(self._build.program("llama-server")), "-m", str(self._model)]
        command += ["--host", "127.0.0.1", "--port", str(port)]
        command += ["--parallel", str(row.streams), "--ctx-size", str(context), "--no-ui"]

        async def served() -> Figures:
            async with serving(command, port, ready_timeout_s=READY_TIMEOUT_S) as url:
                return await load(url, row, seed)

        return asyncio.run(served())


class _Run(msgspec.Struct):
    """A line of llama-batched-bench: prompt tokens and output tokens a stream, streams, seconds of each."""

    pp: int
    tg: int
    pl: int
    t_pp: float
    t_tg: float


def bench_flags(row: Row) -> list[str]:
    """Flags that make llama-batched-bench run a row. Its prompts are random token ids; it samples nothing.

    For decoding alone one prompt is computed and its KV copied to every stream, which changes no decode step.
    """
    context = row.streams * (row.prompt_tokens + row.output_tokens)
    streams = ",".join([str(row.streams)] * row.repeats)
    flags = ["-c", str(context), "-npp", str(row.prompt_tokens), "-ntg", str(row.output_tokens)]
    flags += ["-npl", streams, "--output-format", "jsonl"]
    return [*flags, "-pps"] if row.kind == "decode" else flags


def bench_rate(row: Row, output: bytes) -> float:
    """Tokens a second of a row from what llama-batched-bench printed: the median of its runs.

    Raises:
        PeerFailed: it ran something else.
    """
    lines = (line for line in output.splitlines() if line.startswith(b"{"))
    runs = [msgspec.json.decode(line, type=_Run) for line in lines]
    wanted = (row.prompt_tokens, row.output_tokens, row.streams)
    if len(runs) != row.repeats or any((one.pp, one.tg, one.pl) != wanted for one in runs):
        raise PeerFailed(f"llama-batched-bench printed {len(runs)} runs of {row.repeats}, or others")
    return statistics.median(_rate(row, one) for one in runs)


def _rate(row: Row, one: _Run) -> float:
    if row.kind == "prefill":
        return one.pl * one.pp / one.t_pp
    return one.pl * one.tg / (one.t_tg if row.kind == "decode" else one.t_pp + one.t_tg)
