"""JSON files of a model, read with a limit."""

from __future__ import annotations

import json
import re
from pathlib import Path

from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile

# Half of an escaped pair, or one alone.
_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")


def read_json_object(path: Path, limit: int) -> dict[str, object]:
    """
    Raises:
        ModelFileError: absent, larger than `limit` bytes, or not a JSON object.
    """
    file = DataFile(path)
    try:
        if file.size > limit:
            raise ModelFileError(f"{file.name}: {file.size} bytes; at most {limit} are allowed")
        raw = bytearray(file.size)
        file.read_into(memoryview(raw), 0)
    finally:
        file.close()
    return parse_json_object(bytes(raw), file.name)


def parse_json_object(raw: bytes, label: str, *, unique_keys: bool = False) -> dict[str, object]:
    """
    Raises:
        ModelFileError: not a JSON object in UTF-8, or one with a lone surrogate in it, which is no text, or
            (with `unique_keys`) with a key twice.
    """
    try:
        value = json.loads(raw.decode(), object_pairs_hook=_refuse_repeats if unique_keys else None)
        if _SURROGATE.search(raw) is not None:
            json.dumps(value, ensure_ascii=False).encode()
    except _RepeatedKey as error:
        raise ModelFileError(f"{label}: {error.key[:80]!r} is listed twice") from None
    except (ValueError, RecursionError) as error:
        raise ModelFileError(f"{label}: not valid JSON ({str(error)[:120]})") from error
    if not isinstance(value, dict):
        raise ModelFileError(f"{label}: a JSON object is needed, not a {type(value).__name__}")
    return value


class _RepeatedKey(Exception):
    def __init__(self, key: str) -> None:
        self.key = key


def _refuse_repeats(pairs: list[tuple[str, object]]) -> dict[str, object]:
    values: dict[str, object] = {}
    for key, value in pairs:
        if key in values:
            raise _RepeatedKey(key)
        values[key] = value
    return values
