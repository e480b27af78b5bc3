"""OpenVINO GenAI on the GGUF file. Its package holds no HTTP server."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.peers.contender import Figures, PeerFailed, run_rows
from benchmarks.peers.environments import Environment
from benchmarks.peers.model_files import ModelFiles
from benchmarks.peers.prompts import batches
from benchmarks.peers.rows import Row

VERSION = "2026.4.1"


class OpenVino:
    """OpenVINO GenAI with continuous batching, its own defaults otherwise."""

    name = "openvino"
    version = f"openvino-genai {VERSION}"

    def __init__(self, home: Path, files: ModelFiles) -> None:
        self._environment = Environment(home / "openvino", (f"openvino-genai=={VERSION}.*",))
        self._files = files

    def prepare(self) -> None:
        self._environment.make()
        self._files.published()

    def measure(self, rows: Sequence[Row], seed: int) -> Iterator[tuple[Row, Figures | PeerFailed]]:
        done = [row for row in rows if row.kind != "http"]
        for row in rows:
            if row.kind == "http":
                yield row, PeerFailed("has no HTTP server")
        if not done:
            return
        command = [str(self._environment.python), "-m", "benchmarks.peers.openvino_rows"]
        prompts = {row.name: batches(row, seed) for row in done}
        for row, rates in run_rows(command, self._files.published(), done, prompts, flags={}):
            yield row, rates if isinstance(rates, PeerFailed) else {"tokens_per_s": statistics.median(rates)}
