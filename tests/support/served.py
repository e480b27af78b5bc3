"""The real server as a process of its own, over the real small model."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PROGRAM = str(Path(sys.executable).with_name("tokenmill"))
STOP_S = 120


@dataclass(frozen=True)
class MetricsPage:
    """What one scrape gave."""

    text: str

    def sum(self, name: str, **labels: str) -> float:
        """Sum of a metric's samples whose labels match; 0 when there is none."""
        total = 0.0
        for line in self.text.splitlines():
            match = re.fullmatch(rf"{re.escape(name)}(?:\{{(.*)\}})? (\S+)(?: .*)?", line)
            if match and all(f'{key}="{value}"' in (match[1] or "") for key, value in labels.items()):
                total += float(match[2])
        return total


@dataclass(frozen=True)
class Served:
    """A running server. `model` is the name clients use, `errors` where its standard error goes."""

    url: str
    model: str
    process: subprocess.Popen[str]
    errors: Path

    def log(self) -> str:
        """What it has logged so far."""
        return self.errors.read_text(encoding="utf-8")

    def metrics(self) -> MetricsPage:
        with urllib.request.urlopen(f"{self.url}/metrics", timeout=30) as answer:  # noqa: S310  # loopback
            return MetricsPage(answer.read().decode())

    def metric(self, name: str, **labels: str) -> float:
        return self.metrics().sum(name, **labels)

    def rss_bytes(self) -> int:
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE")

    def cpu_s(self) -> float:
        """Processor seconds the process has used, user and system."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def serving(model: Path, *arguments: str, optimized: bool = False) -> Iterator[Served]:
    """Starts `tokenmill serve`, waits until it is ready, and ends it by SIGTERM; a dirty end is an error.

    Args:
        optimized: under `python -O`, where no `assert` is left.
    """
    kept = {name: value for name, value in os.environ.items() if not name.startswith("TOKENMILL_")}
    python = [sys.executable, "-O"] if optimized else []
    command = [*python, PROGRAM, "serve", str(model), "--port", "0", "--json", *arguments]
    with tempfile.NamedTemporaryFile(prefix="tokenmill-log-") as errors:
        log = Path(errors.name)
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=errors, text=True, env=kept
        )
        with process:
            try:
                ready = _ready(process, log)
                yield Served(ready["url"], ready["model"], process, log)
                process.send_signal(signal.SIGTERM)
                process.communicate(timeout=STOP_S)
                if process.returncode != 0 or "Traceback" in log.read_text(encoding="utf-8"):
                    raise RuntimeError(f"the server ended with {process.returncode}: {log.read_text()}")
            finally:
                process.kill()


def _ready(process: subprocess.Popen[str], log: Path) -> dict[str, str]:
    if process.stdout is not None:
        for line in process.stdout:
            event: dict[str, str] = json.loads(line)
            if event["event"] == "ready":
                return event
    raise RuntimeError(f"the server did not start: {log.read_text(encoding='utf-8')}")
