"""What a command tells while it works: lines and a live bar for people, one JSON object a line for programs.

People's progress goes to standard error, results to standard output. Without a terminal no control
character is written.
"""

from __future__ import annotations

import json
import shlex
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Protocol, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, SpinnerColumn, TaskID, TextColumn, TimeElapsedColumn
from rich.table import Table

from tokenmill.core.events import Event, LoadProgress, PeaksMeasured

# A transfer reports at most this often, in seconds: to programs, and as lines where there is no terminal.
JSON_INTERVAL_S = 0.25
LINE_INTERVAL_S = 5.0

_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


class Transfer(Protocol):
    """How far a download, check or copy has come."""

    @property
    def phase(self) -> str: ...
    @property
    def source(self) -> str: ...
    @property
    def done_bytes(self) -> int: ...
    @property
    def total_bytes(self) -> int | None: ...
    @property
    def seconds(self) -> float: ...


class MemoryPart(Protocol):
    """One line of the memory report, in bytes."""

    @property
    def name(self) -> str: ...
    @property
    def planned(self) -> int: ...
    @property
    def measured(self) -> int: ...


class Peaks(Protocol):
    """What the machine can do at most."""

    @property
    def threads(self) -> int: ...
    @property
    def read_bytes_per_second(self) -> float: ...
    @property
    def int8_multiply_adds_per_second(self) -> float: ...


@dataclass(frozen=True)
class Ready:
    """A server that listens."""

    url: str
    model: str
    needs_key: bool


class Reporter(AbstractContextManager["Reporter"], Protocol):
    """Where a command's progress goes. Entered while it loads; methods may come from any thread."""

    def transfer(self, transfer: Transfer) -> None: ...
    def event(self, event: Event) -> None: ...
    def memory(self, parts: Sequence[MemoryPart]) -> None: ...
    def ready(self, ready: Ready) -> None: ...


def json_line(record: Mapping[str, object]) -> None:
    """Writes one JSON object and makes sure a reader on a pipe sees it now."""
    sys.stdout.write(json.dumps(record, ensure_ascii=False) + "\n")
    sys.stdout.flush()


def size(count: float) -> str:
    """Bytes for people: `138.4 MiB`."""
    power = 0
    while count >= 1024 and power < len(_UNITS) - 1:
        count, power = count / 1024, power + 1
    return f"{count:.1f} {_UNITS[power]}" if power else f"{count:.0f} B"


class JsonReporter:
    """Every line on standard output is a JSON object with an `event`."""

    def __init__(self) -> None:
        self._last = float("-inf")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def transfer(self, transfer: Transfer) -> None:
        finished = transfer.done_bytes == transfer.total_bytes
        if not finished and time.monotonic() - self._last < JSON_INTERVAL_S:
            return
        self._last = time.monotonic()
        self._progress(
            transfer.phase, transfer.source, transfer.done_bytes, transfer.total_bytes, transfer.seconds
        )

    def event(self, event: Event) -> None:
        if isinstance(event, LoadProgress):
            self._progress(event.phase, event.source, event.bytes, event.bytes, event.seconds)
        elif isinstance(event, PeaksMeasured):
            json_line({"event": "cpu", **peaks_record(event.isa, event)})

    def _progress(self, phase: str, source: str, done: int, total: int | None, seconds: float) -> None:
        json_line(
            {
                "event": "progress",
                "phase": phase,
                "source": source,
                "done_bytes": done,
                "total_bytes": total,
                "seconds": round(seconds, 3),
            }
        )

    def memory(self, parts: Sequence[MemoryPart]) -> None:
        json_line({"event": "memory", "parts": memory_records(parts)})

    def ready(self, ready: Ready) -> None:
        json_line({"event": "ready", "url": ready.url, "model": ready.model})


class HumanReporter:
    """A line for each finished phase; on a terminal a live bar for the one under way."""

    def __init__(self) -> None:
        self._out = Console(highlight=False, soft_wrap=True)
        self._err = Console(stderr=True, highlight=False, soft_wrap=True)
        self._bar: Progress | None = None
        self._task: TaskID | None = None
        self._phase = ""
        self._line_at = time.monotonic()
        self._lock = threading.Lock()

    def __enter__(self) -> Self:
        if self._err.is_terminal:
            self._bar = Progress(
                SpinnerColumn(),
                TextColumn("{task.description:<7}"),
                BarColumn(bar_width=30),
                TextColumn("{task.fields[detail]}"),
                TimeElapsedColumn(),
                console=self._err,
                transient=True,
            )
            self._bar.start()
            self._wait()
        return self

    def __exit__(self, *exc: object) -> None:
        if self._bar is not None:
            self._bar.stop()
            self._bar = None

    def transfer(self, transfer: Transfer) -> None:
        with self._lock:
            detail = _amount(transfer)
            if transfer.done_bytes == transfer.total_bytes:
                self._finish(transfer.phase, f"{transfer.source}  {detail}  {transfer.seconds:.1f} s")
            elif self._bar is not None:
                self._show(self._bar, transfer, f"{transfer.source}  {detail}")
            elif time.monotonic() - self._line_at >= LINE_INTERVAL_S:
                self._line(transfer.phase, f"{transfer.source}  {detail}")

    def event(self, event: Event) -> None:
        if isinstance(event, LoadProgress):
            amount = f"  {size(event.bytes)}" if event.bytes else ""
            with self._lock:
                self._finish(event.phase, f"{event.source}{amount}  {event.seconds:.1f} s")
        elif isinstance(event, PeaksMeasured):
            with self._lock:
                self._finish("cpu", peaks_line(event.isa, event))

    def _show(self, bar: Progress, transfer: Transfer, detail: str) -> None:
        if self._task is None or self._phase != transfer.phase:
            self._clear()
            self._task = bar.add_task(transfer.phase, detail=detail)
            self._phase = transfer.phase
        bar.update(self._task, completed=transfer.done_bytes, total=transfer.total_bytes, detail=detail)

    def _finish(self, phase: str, detail: str) -> None:
        self._clear()
        self._line(phase, detail)
        self._wait()

    def _wait(self) -> None:
        """What comes next has not been told yet, but something is going on."""
        if self._bar is not None:
            self._task = self._bar.add_task("working", total=None, detail="")
            self._phase = "working"

    def _clear(self) -> None:
        if self._bar is not None and self._task is not None:
            self._bar.remove_task(self._task)
        self._task = None

    def _line(self, phase: str, detail: str) -> None:
        self._line_at = time.monotonic()
        self._err.print(f"  {phase:<7} {detail}", markup=False)

    def memory(self, parts: Sequence[MemoryPart]) -> None:
        print_memory(self._out, parts)

    def ready(self, ready: Ready) -> None:
        self._out.print(f"\nReady: {ready.model} at {ready.url} (Ctrl-C stops it). Try:\n", style="bold")
        self._out.print(curl_example(ready) + "\n", markup=False)


def curl_example(ready: Ready) -> str:
    """A command line that asks the server something. The key itself is never written out."""
    body = {
        "model": ready.model,
        "messages": [{"role": "user", "content": "Name the capital of France."}],
        "temperature": 0,
    }
    lines = [f"curl {ready.url}/v1/chat/completions", "-H 'content-type: application/json'"]
    if ready.needs_key:
        lines.append('-H "authorization: Bearer $TOKENMILL_API_KEY"')
    lines.append(f"-d {shlex.quote(json.dumps(body, ensure_ascii=False))}")
    return " \\\n  ".join(lines)


def _amount(transfer: Transfer) -> str:
    if transfer.total_bytes is None:
        return size(transfer.done_bytes)
    return f"{size(transfer.done_bytes)} of {size(transfer.total_bytes)}"


def peaks_record(isa: str, peaks: Peaks) -> dict[str, object]:
    return {
        "isa": isa,
        "threads": peaks.threads,
        "read_bytes_per_second": round(peaks.read_bytes_per_second),
        "int8_multiply_adds_per_second": round(peaks.int8_multiply_adds_per_second),
    }


def peaks_line(isa: str, peaks: Peaks) -> str:
    return (
        f"{isa}, {peaks.threads} {'thread' if peaks.threads == 1 else 'threads'}: "
        f"reads {peaks.read_bytes_per_second / 1e9:.1f} GB/s, "
        f"{peaks.int8_multiply_adds_per_second / 1e9:.0f} billion int8 multiply-adds/s"
    )


def memory_records(parts: Sequence[MemoryPart]) -> list[dict[str, object]]:
    return [
        {"name": part.name, "planned_bytes": part.planned, "measured_bytes": part.measured} for part in parts
    ]


def print_memory(console: Console, parts: Sequence[MemoryPart]) -> None:
    """Planned against measured memory, part by part."""
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 2))
    for heading in ("memory", "planned", "measured"):
        table.add_column(heading, justify="left" if heading == "memory" else "right")
    for part in parts:
        table.add_row(part.name, size(part.planned), size(part.measured))
    table.add_row("total", size(sum(p.planned for p in parts)), size(sum(p.measured for p in parts)))
    console.print(table)


def reporter(as_json: bool) -> Reporter:
    return JsonReporter() if as_json else HumanReporter()
