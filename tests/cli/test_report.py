"""What is told while a model loads, to people and to programs."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass

import pytest

from tokenmill.cli.report import HumanReporter, JsonReporter, Ready, curl_example, reporter, size
from tokenmill.core.events import LoadProgress, PeaksMeasured


@dataclass(frozen=True)
class Moved:
    phase: str
    source: str
    done_bytes: int
    total_bytes: int | None
    seconds: float


@dataclass(frozen=True)
class Part:
    name: str
    planned: int
    measured: int


READ = LoadProgress(at=1.0, phase="read", source="tiny", bytes=3 << 20, seconds=0.25)
PEAKS = PeaksMeasured(
    at=1.0,
    isa="avx2",
    threads=4,
    read_bytes_per_second=19.96e9,
    int8_multiply_adds_per_second=400.4e9,
)
PARTS = [Part("weights", 2 << 20, 3 << 20), Part("kv cache", 1 << 30, 1 << 30)]


def test_json_lines_are_objects_with_an_event(capsys: pytest.CaptureFixture[str]) -> None:
    with reporter(as_json=True) as tell:
        tell.transfer(Moved("fetch", "tiny", 10, 10, 1.5))
        tell.event(READ)
        tell.memory(PARTS)
        tell.ready(Ready("http://127.0.0.1:8000", "tiny", needs_key=False))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines == [
        {
            "event": "progress",
            "phase": "fetch",
            "source": "tiny",
            "done_bytes": 10,
            "total_bytes": 10,
            "seconds": 1.5,
        },
        {
            "event": "progress",
            "phase": "read",
            "source": "tiny",
            "done_bytes": 3 << 20,
            "total_bytes": 3 << 20,
            "seconds": 0.25,
        },
        {
            "event": "memory",
            "parts": [
                {"name": "weights", "planned_bytes": 2 << 20, "measured_bytes": 3 << 20},
                {"name": "kv cache", "planned_bytes": 1 << 30, "measured_bytes": 1 << 30},
            ],
        },
        {"event": "ready", "url": "http://127.0.0.1:8000", "model": "tiny"},
    ]


def test_the_processor_is_told_both_ways(capsys: pytest.CaptureFixture[str]) -> None:
    JsonReporter().event(PEAKS)
    HumanReporter().event(PEAKS)
    shown = capsys.readouterr()
    assert json.loads(shown.out) == {
        "event": "cpu",
        "isa": "avx2",
        "threads": 4,
        "read_bytes_per_second": 19_960_000_000,
        "int8_multiply_adds_per_second": 400_400_000_000,
    }
    assert shown.err == "  cpu     avx2, 4 threads: reads 20.0 GB/s, 400 billion int8 multiply-adds/s\n"


def test_json_progress_is_thinned_but_ends_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    tell = JsonReporter()
    for done in range(1, 1001):
        tell.transfer(Moved("fetch", "tiny", done, 1000, done / 1e6))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert lines[0]["done_bytes"] == 1
    assert lines[-1]["done_bytes"] == 1000
    assert len(lines) < 20


def test_people_get_a_line_a_phase_and_no_control_characters(capsys: pytest.CaptureFixture[str]) -> None:
    with HumanReporter() as tell:
        tell.transfer(Moved("fetch", "tiny", 1 << 20, 2 << 20, 0.5))
        tell.transfer(Moved("fetch", "tiny", 2 << 20, 2 << 20, 1.0))
        tell.event(READ)
    tell.memory(PARTS)
    shown = capsys.readouterr()
    assert shown.err == "  fetch   tiny  2.0 MiB of 2.0 MiB  1.0 s\n  read    tiny  3.0 MiB  0.2 s\n"
    assert [line.split() for line in shown.out.splitlines()] == [
        ["memory", "planned", "measured"],
        ["weights", "2.0", "MiB", "3.0", "MiB"],
        ["kv", "cache", "1.0", "GiB", "1.0", "GiB"],
        ["total", "1.0", "GiB", "1.0", "GiB"],
    ]
    assert "\x1b" not in shown.out + shown.err and "\r" not in shown.out + shown.err


def test_a_terminal_gets_a_live_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm")
    with HumanReporter() as tell:
        tell.transfer(Moved("fetch", "tiny", 1 << 20, 2 << 20, 0.5))
        tell.transfer(Moved("fetch", "tiny", 2 << 20, 2 << 20, 1.0))
        tell.event(READ)
    shown = capsys.readouterr().err
    assert "\x1b[" in shown
    assert "fetch   tiny  2.0 MiB of 2.0 MiB  1.0 s" in shown


def test_ready_shows_where_and_how_to_ask(capsys: pytest.CaptureFixture[str]) -> None:
    HumanReporter().ready(Ready("http://127.0.0.1:8000", "tiny", needs_key=False))
    out = capsys.readouterr().out
    assert "Ready: tiny at http://127.0.0.1:8000" in out
    assert "curl http://127.0.0.1:8000/v1/chat/completions" in out


def test_the_curl_example_is_one_shell_command_with_valid_json() -> None:
    words = shlex.split(curl_example(Ready("http://h:1", "it's", needs_key=True)).replace("\\\n", ""))
    assert words[:2] == ["curl", "http://h:1/v1/chat/completions"]
    assert "authorization: Bearer $TOKENMILL_API_KEY" in words
    assert json.loads(words[-1])["model"] == "it's"


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (145_123_456, "138.4 MiB"), (5 << 50, "5120.0 TiB")],
)
def test_sizes_are_short(count: int, text: str) -> None:
    assert size(count) == text
