"""tokenmill: the engine as a library, and `tokenmill serve` for the row over HTTP."""

from __future__ import annotations

import asyncio
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence

from benchmarks.peers.contender import Figures, PeerFailed, run_rows
from benchmarks.peers.http_load import load
from benchmarks.peers.model_files import ModelFiles
from benchmarks.peers.prompts import batches
from benchmarks.peers.rows import Row
from tokenmill.bench.process import ServerProcess, tokenmill_command
from tokenmill.core.errors import TokenmillError
from tokenmill.core.version import VERSION


class Tokenmill:
    """This project, with its defaults where `flags` (fields of `ModelFlags`) say nothing else."""

    name = "tokenmill"
    version = f"tokenmill {VERSION}"

    def __init__(self, files: ModelFiles, flags: Mapping[str, str]) -> None:
        self._files = files
        self._flags = flags

    def prepare(self) -> None:
        self._files.published()

    def measure(self, rows: Sequence[Row], seed: int) -> Iterator[tuple[Row, Figures | PeerFailed]]:
        inside = [row for row in rows if row.kind != "http"]
        if inside:
            prompts = {row.name: batches(row, seed) for row in inside}
            command = [sys.executable, "-m", "benchmarks.peers.ours_rows"]
            model = self._files.published()
            for row, rates in run_rows(command, model, inside, prompts, flags=self._flags):
                yield (
                    row,
                    rates if isinstance(rates, PeerFailed) else {"tokens_per_s": statistics.median(rates)},
                )
        for row in rows:
            if row.kind == "http":
                yield row, asyncio.run(self._serve(row, seed))

    async def _serve(self, row: Row, seed: int) -> Figures:
        flags = [
            part for name, value in self._flags.items() for part in (f"--{name.replace('_', '-')}", value)
        ]
        try:
            async with ServerProcess(tokenmill_command(str(self._files.published()), *flags)) as server:
                return await load(server.url, row, seed)
        except TokenmillError as error:
            raise PeerFailed(error.message) from None
