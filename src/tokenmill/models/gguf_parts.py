"""A GGUF model in one file or in several: large ones are cut into `name-00001-of-00003.gguf` and so on.

The first part holds all metadata, each part the tensors that lie in it. `split.no` counts from 0, the number
in a name from 1. Which files are opened follows from the name that was given, never from a file's content.
"""

from __future__ import annotations

import re
from pathlib import Path
from types import MappingProxyType

from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile
from tokenmill.models.fields import Fields
from tokenmill.models.gguf import MAX_TENSORS, GgufHeader, GgufTensor, read_header

MAX_PARTS = 1024
_PART_NAME = re.compile(
    r"(?P<stem>.+)-(?P<number>[0-9]{5})-of-(?P<count>[0-9]{5})\.gguf", re.ASCII | re.DOTALL
)


def part_names(name: str) -> tuple[str, ...]:
    """The names of all parts where `name` is that of a first one; `name` alone otherwise."""
    match = _PART_NAME.fullmatch(name)
    if match is None or int(match["number"]) != 1 or not 1 <= int(match["count"]) <= MAX_PARTS:
        return (name,)
    return tuple(_part_name(match["stem"], n, int(match["count"])) for n in range(int(match["count"])))


def model_name(path: Path) -> str:
    """The file's name without its ending and the number of its part."""
    match = _PART_NAME.fullmatch(path.name)
    return match["stem"] if match else path.stem


def open_parts(path: Path) -> tuple[GgufHeader, list[DataFile]]:
    """The whole model's header, and the open files its tensors lie in.

    Raises:
        ModelFileError: a header that cannot be used, or parts that are not all there and of one model.
    """
    files = [DataFile(path)]
    try:
        first = read_header(files[0])
        count = _check_first(Fields(path.name, first.metadata), path.name)
        tensors = dict(first.tensors)
        for name in part_names(path.name)[1:count]:
            files.append(_open_part(path.with_name(name)))
            part = read_header(files[-1])
            _check_part(Fields(name, part.metadata), len(files) - 1, count)
            _add(tensors, part, name)
        _check_total(Fields(path.name, first.metadata), len(tensors), count)
    except BaseException:
        for file in files:
            file.close()
        raise
    return GgufHeader(first.metadata, MappingProxyType(tensors)), files


def _part_name(stem: str, number: int, count: int) -> str:
    return f"{stem}-{number + 1:05d}-of-{count:05d}.gguf"


def _check_first(fields: Fields, name: str) -> int:
    """The number of parts. A file that is no part may be called as it likes."""
    count = fields.integer("split.count", 0, MAX_PARTS, 1)
    if count <= 1:
        return 1
    number = fields.integer("split.no", 0, count - 1)
    if number:
        match = _PART_NAME.fullmatch(name)
        first = _part_name(match["stem"], 0, count) if match else "its first part"
        raise ModelFileError(f"{name}: part {number + 1} of {count}; give {first}")
    if len(part_names(name)) != count:
        raise ModelFileError(
            f"{name}: the first of {count} parts, which are found by their names; this one must end in "
            f"{_part_name('', 0, count)}"
        )
    return count


def _open_part(path: Path) -> DataFile:
    if not path.exists():
        raise ModelFileError(f"{path.name} is missing: all parts of a model must lie in one folder")
    return DataFile(path)


def _check_part(fields: Fields, number: int, count: int) -> None:
    for key, expected in (("split.no", number), ("split.count", count)):
        if fields.get(key) != expected:
            raise fields.error(key, f"{expected}; it is no part of this model")


def _add(tensors: dict[str, GgufTensor], part: GgufHeader, name: str) -> None:
    twice = next((tensor for tensor in part.tensors if tensor in tensors), None)
    if twice is not None:
        raise ModelFileError(f"{name}: tensor {twice!r} lies in an earlier part too")
    tensors.update(part.tensors)
    if len(tensors) > MAX_TENSORS:
        raise ModelFileError(f"{name}: {len(tensors)} tensors up to here; at most {MAX_TENSORS} are allowed")


def _check_total(fields: Fields, found: int, count: int) -> None:
    if count > 1 and fields.integer("split.tensors.count", 1, MAX_TENSORS, found) != found:
        raise fields.error("split.tensors.count", f"{found}, the tensors of all parts")
