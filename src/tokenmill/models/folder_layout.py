"""Which files of a model folder this program reads; nothing else is fetched or copied."""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable

from tokenmill.models.pooling_files import POOLING

# Never pickles (*.bin, *.pt, *.pth) and never code: both run when they are read.
_DESCRIPTIONS = ("*.json", "*.jinja")


def files_read(names: Iterable[str]) -> list[str]:
    """Those of `names` that are read, weights last; empty where no weights are that can be.

    Args:
        names: every file's path below the folder, with `/` between its parts.
    """
    given = list(names)
    top = [name for name in given if "/" not in name]
    # Some folders hold the same weights twice, in another project's layout.
    standard = [name for name in top if fnmatch.fnmatchcase(name, "model*.safetensors")]
    weights = standard or [name for name in top if name.endswith(".safetensors")]
    if not weights:
        return []
    described = [name for name in top if any(fnmatch.fnmatchcase(name, like) for like in _DESCRIPTIONS)]
    # Read only where there is no tokenizer.json; most folders have both.
    pieces = [name for name in top if name == "tokenizer.model" and "tokenizer.json" not in top]
    pooling = [name for name in given if name == POOLING]
    return [*described, *pieces, *pooling, *weights]
