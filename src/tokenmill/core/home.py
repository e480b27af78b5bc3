"""The one folder of this user's files: models, and what is built or measured once."""

from __future__ import annotations

import os
from pathlib import Path


def default_home() -> Path:
    """$TOKENMILL_HOME, else tokenmill in $XDG_CACHE_HOME or ~/.cache."""
    home = os.environ.get("TOKENMILL_HOME")
    if home:
        return Path(home).expanduser().absolute()
    cache = os.environ.get("XDG_CACHE_HOME")
    return (Path(cache) if cache else Path.home() / ".cache").expanduser().absolute() / "tokenmill"
