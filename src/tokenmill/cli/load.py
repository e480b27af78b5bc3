"""From a model's name to a warm engine: fetch, open, load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.config import Settings, load_settings
from tokenmill.cli.report import Reporter
from tokenmill.core.bus import Bus
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags

if TYPE_CHECKING:
    from tokenmill.engine.worker import EngineWorker
    from tokenmill.models.source import ModelSource


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


def fetch(model: str, flags: ModelFlags, reporter: Reporter) -> tuple[str, ModelSource]:
    """The name clients use and the opened model, fetched where needed.

    Raises:
        DownloadError, ModelFileError: it cannot be had, or is not a model.
    """
    from tokenmill.models.pull import default_home, resolve
    from tokenmill.models.source import open_model

    path = resolve(model, home=default_home(), progress=reporter.transfer)
    source = open_model(path)
    return flags.served_model_name or public_name(model, source.name), source


def start(name: str, source: ModelSource, flags: ModelFlags, bus: Bus, reporter: Reporter) -> EngineWorker:
    """A warm engine; each phase of loading is reported.

    Raises:
        ModelFileError, InsufficientMemory: it cannot be loaded here.
    """
    from tokenmill.engine.worker import EngineWorker

    unsubscribe = bus.subscribe(reporter.event)
    try:
        worker = EngineWorker(source, flags, bus, name=name)
        worker.start()
    finally:
        unsubscribe()
    return worker


def load(model: str, flags: ModelFlags, reporter: Reporter) -> EngineWorker:
    """`fetch` and `start` for a command that wants no server."""
    with reporter:
        name, source = fetch(model, flags, reporter)
        return start(name, source, flags, Bus(), reporter)


def public_name(model: str, file_name: str) -> str:
    """What clients call it: a catalogue name, a hub id without its file, or a path's last part alone."""
    from tokenmill.models.catalogue import CATALOGUE

    if model not in CATALOGUE and Path(model).expanduser().exists():
        return file_name
    return model.partition(":")[0].partition("@")[0]
