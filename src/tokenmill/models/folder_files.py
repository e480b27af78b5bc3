"""The small files of a folder in Hugging Face layout, read whole and no larger than they may be."""

from __future__ import annotations

from pathlib import Path

from tokenmill.core.errors import ModelFileError
from tokenmill.models.json_file import read_json_object

MAX_CONFIG_BYTES = 32 << 20


def read_json(folder: Path, name: str) -> dict[str, object]:
    """A small JSON object of the folder; empty when the file is not there."""
    path = folder / name
    return read_json_object(path, MAX_CONFIG_BYTES) if path.exists() else {}


def read_bytes(folder: Path, name: str, max_bytes: int) -> bytes | None:
    """A file of the folder; None when it is not there."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelFileError(f"{name} has {size} bytes; at most {max_bytes} are allowed")
        return path.read_bytes()
    except FileNotFoundError:
        return None
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror}") from None


def read_text(folder: Path, name: str, max_bytes: int) -> str | None:
    """A file of the folder as text; None when it is not there."""
    data = read_bytes(folder, name, max_bytes)
    try:
        return None if data is None else data.decode("utf-8")
    except UnicodeDecodeError:
        raise ModelFileError(f"{name} is not UTF-8 text") from None
