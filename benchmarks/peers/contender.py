"""What the benchmark knows of an engine under test."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from benchmarks.peers.rows import Row

# Names to values: tokens_per_s, and over HTTP also ttft_p50_s, ttft_p99_s, gap_p50_s, gap_p99_s.
Figures = Mapping[str, float]
Rates = Mapping[Row, Sequence[float]]
LAST_LINES = 3


class PeerFailed(Exception):
    """An engine could not be had or did not do a row; the text goes into the table."""


class Contender(Protocol):
    """An engine with one format of weights."""

    @property
    def name(self) -> str: ...

    @property
    def version(self) -> str: ...

    def prepare(self) -> None:
        """Gets the engine and its model files where they are not there yet. Raises PeerFailed."""
        ...

    def measure(self, rows: Sequence[Row], seed: int) -> Iterator[tuple[Row, Figures | PeerFailed]]:
        """Runs rows in new processes. Raises PeerFailed when none of those that are left can be done."""
        ...


class _Job(msgspec.Struct):
    """What a runner of rows reads; see `run_rows`."""

    model: str
    flags: Mapping[str, object]
    rows: list[_JobRow]


class _JobRow(msgspec.Struct):
    name: str
    kind: str
    output_tokens: int
    batches: list[list[list[int]]]


class _Line(msgspec.Struct):
    row: str = ""
    rates: list[float] = []
    failed: str = ""


def run_rows(
    command: Sequence[str],
    model: Path,
    rows: Sequence[Row],
    batches: Mapping[str, list[list[list[int]]]],
    *,
    flags: Mapping[str, object],
    timeout_s: float = 900.0,
) -> Iterator[tuple[Row, list[float] | PeerFailed]]:
    """Hands rows to a process as one JSON object on stdin and reads a JSON line a row from its stdout.

    Raises:
        PeerFailed: the process ended with an error or took longer than `timeout_s`.
    """
    job = _Job(
        str(model),
        flags,
        [_JobRow(row.name, row.kind, row.output_tokens, batches[row.name]) for row in rows],
    )
    done = run(command, given=msgspec.json.encode(job), timeout_s=timeout_s)
    by_name = {row.name: row for row in rows}
    for raw in done.stdout.splitlines():
        try:
            line = msgspec.json.decode(raw, type=_Line)
        except msgspec.MsgspecError:  # engines print what they like between our lines
            continue
        if line.row in by_name:
            row = by_name.pop(line.row)
            yield row, PeerFailed(line.failed) if line.failed else line.rates
    if by_name:
        raise PeerFailed(f"no answer for {', '.join(by_name)}")


def run(
    command: Sequence[str],
    *,
    given: bytes = b"",
    timeout_s: float,
    cwd: Path | None = None,
) -> subprocess.CompletedProcess[bytes]:
    """Runs a process to its end.

    Raises:
        PeerFailed: it could not be started, ended with an error, or took longer than `timeout_s`.
    """
    try:
        done = subprocess.run(command, input=given, capture_output=True, timeout=timeout_s, cwd=cwd)
    except subprocess.TimeoutExpired:
        raise PeerFailed(f"{Path(command[0]).name} took longer than {timeout_s:.0f} s") from None
    except OSError as error:
        raise PeerFailed(f"{command[0]} cannot be started: {error.strerror}") from None
    if done.returncode:
        raise PeerFailed(f"ended with code {done.returncode}: {last_words(done.stderr or done.stdout)}")
    return done


def last_words(output: bytes) -> str:
    """The last lines of what a process wrote, on one line."""
    lines = [line.strip() for line in output.decode("utf-8", "replace").splitlines() if line.strip()]
    return " / ".join(lines[-LAST_LINES:])[-500:]
