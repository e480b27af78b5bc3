"""What is published about getting a model here."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Self

import pytest

from tokenmill.cli import load
from tokenmill.cli.report import MemoryPart, Ready, Transfer
from tokenmill.core.bus import Bus
from tokenmill.core.events import Event, LoadProgress
from tokenmill.core.flags import ModelFlags
from tokenmill.models import pull
from tokenmill.models.files import OnProgress, Progress
from tokenmill.observe.metrics import Metrics


class Notes:
    """A reporter that remembers."""

    def __init__(self) -> None:
        self.transfers: list[Transfer] = []
        self.events: list[Event] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        return None

    def transfer(self, transfer: Transfer) -> None:
        self.transfers.append(transfer)

    def event(self, event: Event) -> None:
        self.events.append(event)

    def memory(self, parts: Sequence[MemoryPart]) -> None: ...
    def ready(self, ready: Ready) -> None: ...


STEPS = (
    Progress("fetch", "a", 5, 10, 1.0),
    Progress("fetch", "a", 10, 10, 2.0),
    Progress("verify", "a", 10, 10, 9.0),
    Progress("fetch", "b", 7, None, 3.0),
    Progress("copy", "b", 7, 7, 0.5),
)


@pytest.mark.parametrize(
    ("steps", "expected"),
    [(STEPS, [("fetch", 17, 5.0), ("copy", 7, 0.5)]), (STEPS[:1], [("fetch", 5, 1.0)]), ((), [])],
)
def test_metrics_hear_how_long_a_model_took_to_come(
    monkeypatch: pytest.MonkeyPatch,
    small_model_path: Path,
    steps: Sequence[Progress],
    expected: list[tuple[str, int, float]],
) -> None:
    def resolve(model: str, *, home: Path, progress: OnProgress) -> Path:
        for step in steps:
            progress(step)
        return small_model_path

    class Worker:
        def __init__(self, *_: object, **__: object) -> None: ...
        def start(self) -> None: ...

    monkeypatch.setattr(pull, "resolve", resolve)
    monkeypatch.setattr("tokenmill.engine.worker.EngineWorker", Worker)
    notes, bus, heard, metrics = Notes(), Bus(), list[Event](), Metrics("tiny", load.INSTANCE)
    bus.subscribe(heard.append)
    bus.subscribe(metrics.on_event)
    fetched = load.fetch("tiny", ModelFlags(served_model_name="tiny"), notes)
    fetched.source.weights.close()
    load.start(fetched, ModelFlags(), bus, notes)
    found = [event for event in heard if isinstance(event, LoadProgress)]
    assert [(event.phase, event.bytes, event.seconds) for event in found] == expected
    assert {(event.model, event.instance) for event in found} <= {("tiny", load.INSTANCE)}
    assert notes.transfers == list(steps)
    assert notes.events == []  # it has seen the transfers themselves
    page = metrics.render()[0].decode()
    for phase, _, seconds in expected:
        assert any(
            line.startswith("tokenmill_model_load_seconds{")
            and f'"{phase}"' in line
            and line.endswith(f" {seconds}")
            for line in page.splitlines()
        )
