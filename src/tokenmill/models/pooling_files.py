"""How a folder in the layout of sentence-transformers says that its model makes embeddings."""

from __future__ import annotations

import json
from pathlib import Path

from tokenmill.core.errors import ModelFileError
from tokenmill.core.request import Pooling
from tokenmill.models.fields import Fields
from tokenmill.models.folder_files import read_text
from tokenmill.models.json_file import read_json_object

MODULES = "modules.json"
POOLING = "1_Pooling/config.json"
MAX_BYTES = 1 << 20

_MODES: dict[str, Pooling] = {"mean": "mean", "lasttoken": "last"}
_FLAGS = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "lasttoken"}
# Embeddings always have unit length, so a module that makes them so changes nothing.
_KNOWN = {"Transformer", "Pooling", "Normalize"}


def read_pooling(folder: Path) -> Pooling | None:
    """What the folder says; None for nothing, for a way not offered here, and where layers follow it.

    Raises:
        ModelFileError: a file of it cannot be read.
    """
    if not (folder / POOLING).exists() or not _kinds(folder) <= _KNOWN:
        return None
    config = Fields(POOLING, read_json_object(folder / POOLING, MAX_BYTES))
    mode = config.text("pooling_mode", "")
    if not mode:
        # Older files have a flag a mode. With several, the embedding is one pooling after the other.
        flags = [key for key, value in config.items() if key.startswith("pooling_mode_") and value is True]
        mode = _FLAGS.get(flags[0], "") if len(flags) == 1 else ""
    return _MODES.get(mode)


def _kinds(folder: Path) -> set[str]:
    """Names of the modules' classes, without the package they are in."""
    text = read_text(folder, MODULES, MAX_BYTES)
    if text is None:
        return set()
    try:
        modules = json.loads(text)
        return {str(module["type"]).rpartition(".")[2] for module in modules}
    except (ValueError, RecursionError, KeyError, TypeError):
        raise ModelFileError(f"{MODULES}: a JSON list of modules with a type each is needed") from None
