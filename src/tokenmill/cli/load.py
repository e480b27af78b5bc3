"""From a model's name to a warm engine: fetch, open, load."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.config import Settings, load_settings
from tokenmill.cli.report import Reporter, Transfer
from tokenmill.core.bus import Bus
from tokenmill.core.errors import ConfigError
from tokenmill.core.events import LoadProgress
from tokenmill.core.flags import ModelFlags

if TYPE_CHECKING:
    from tokenmill.engine.worker import EngineWorker
    from tokenmill.models.source import ModelSource


# The one engine of this process, in metrics.
INSTANCE = "0"


def settings(
    flags: Mapping[str, object], config: Path | None, model: str | None, *, default: bool
) -> Settings:
    """This process's settings.

    Args:
        model: what the command line named.
        default: take the default model where no source names one.

    Raises:
        ConfigError: see `cli.config`; or no model is named.
    """
    named = {} if model is None else {"model": model}
    found = load_settings({**flags, **named}, os.environ, path=config)
    if found.model:
        return found
    if not default:
        raise ConfigError("no model named: tokenmill serve MODEL (tokenmill models lists those known)")
    from tokenmill.models.catalogue import DEFAULT_MODEL

    return replace(found, model=DEFAULT_MODEL)


@dataclass(frozen=True)
class Fetched:
    """An opened model, and what it took to get it here.

    Attributes:
        name: what clients call it.
        progress: one event for fetching and one for copying, where that was needed.
    """

    name: str
    source: ModelSource
    progress: tuple[LoadProgress, ...]


def fetch(model: str, flags: ModelFlags, reporter: Reporter) -> Fetched:
    """The opened model, fetched where needed.

    Raises:
        DownloadError, ModelFileError: it cannot be had, or is not a model.
    """
    from tokenmill.core.home import default_home
    from tokenmill.models.pull import resolve
    from tokenmill.models.source import open_model

    last: dict[tuple[str, str], Transfer] = {}

    def transfer(state: Transfer) -> None:
        last[state.phase, state.source] = state
        reporter.transfer(state)

    path = resolve(model, home=default_home(), progress=transfer)
    source = open_model(path)
    name = next(iter(flags.served_names), None) or public_name(model, source.name)
    progress = (_total(phase, name, last.values()) for phase in ("fetch", "copy"))
    return Fetched(name, source, tuple(event for event in progress if event is not None))


def _total(phase: str, name: str, transfers: Iterable[Transfer]) -> LoadProgress | None:
    """All transfers of a phase as one event; a model may have many files."""
    done = [transfer for transfer in transfers if transfer.phase == phase]
    if not done:
        return None
    return LoadProgress(
        at=time.monotonic(),
        model=name,
        instance=INSTANCE,
        phase=phase,
        source=name,
        bytes=sum(transfer.done_bytes for transfer in done),
        seconds=sum(transfer.seconds for transfer in done),
    )


def start(fetched: Fetched, flags: ModelFlags, bus: Bus, reporter: Reporter) -> EngineWorker:
    """A warm engine; the bus hears of each phase, the reporter of those it has not yet seen.

    Raises:
        ModelFileError, InsufficientMemory: it cannot be loaded here.
    """
    from tokenmill.engine.worker import EngineWorker

    for event in fetched.progress:
        bus.publish(event)
    unsubscribe = bus.subscribe(reporter.event)
    try:
        worker = EngineWorker(fetched.source, flags, bus, name=fetched.name, instance=INSTANCE)
        worker.start()
    finally:
        unsubscribe()
    return worker


def load(model: str, flags: ModelFlags, reporter: Reporter) -> EngineWorker:
    """`fetch` and `start` for a command that wants no server."""
    with reporter:
        return start(fetch(model, flags, reporter), flags, Bus(), reporter)


def public_name(model: str, file_name: str) -> str:
    """What clients call it: a catalogue name, a hub id without its file, or a path's last part alone."""
    from tokenmill.models.catalogue import CATALOGUE

    if model not in CATALOGUE and Path(model).expanduser().exists():
        return file_name
    return model.partition(":")[0].partition("@")[0]
