"""From a model's name to a warm engine: fetch, open, load."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from tokenmill.cli.config import Settings, load_settings
from tokenmill.cli.report import Reporter
from tokenmill.core.bus import Bus
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ModelFlags

if TYPE_CHECKING:
    from tokenmill.engine.worker import EngineWorker


@dataclass(frozen=True)
class Loaded:
    """A warm engine. `name` is what clients call the model."""

    name: str
    vocab_size: int
    worker: EngineWorker
    bus: Bus


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


def load(model: str, flags: ModelFlags, reporter: Reporter) -> Loaded:
    """Fetches the model where needed, loads and warms it, and reports each phase.

    Raises:
        DownloadError, ModelFileError, InsufficientMemory: as the parts raise them.
    """
    bus = Bus()
    with reporter:
        from tokenmill.models.catalogue import default_home, resolve
        from tokenmill.models.source import open_model

        path = resolve(model, home=default_home(), progress=reporter.transfer)
        source = open_model(path)
        name = flags.served_model_name or public_name(model, source.name)

        from tokenmill.engine.worker import EngineWorker

        unsubscribe = bus.subscribe(reporter.event)
        try:
            worker = EngineWorker(source, flags, bus, name=name)
            worker.start()
        finally:
            unsubscribe()
    return Loaded(name, source.spec.vocab_size, worker, bus)


def public_name(model: str, file_name: str) -> str:
    """What clients call it: a path's own name, never the path; a hub id without its file."""
    return file_name if Path(model).exists() else model.partition(":")[0]
