"""The values of a GGUF header: a cursor that cannot leave the header, and the metadata it reads.

Every length is compared with the bytes that are left before anything is allocated or skipped.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile

MAX_HEADER_BYTES = 128 << 20
MAX_KEY_BYTES = 65535
MAX_ARRAY_DEPTH = 4

_U32, _U64 = struct.Struct("<I"), struct.Struct("<Q")
_BOOL, _STRING, _ARRAY = 7, 8, 9
# struct codes of the scalar types, by GGUF's number.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
# Least bytes an element of a type can take: a string has a length, an array a type and a length.
_LEAST_BYTES = {**{kind: struct.calcsize(code) for kind, code in _SCALARS.items()}, _STRING: 8, _ARRAY: 12}


class Cursor:
    """A position in the header."""

    def __init__(self, data: memoryview, file: DataFile) -> None:
        self.data = data
        self.label = file.name
        self.at = 0
        self._whole_file = len(data) == file.size

    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> int:
        """Moves over `count` bytes and says where they start."""
        start = self.at
        if count > self.left():
            if not self._whole_file:
                raise self.error(f"the header is longer than {MAX_HEADER_BYTES} bytes")
            raise self.error(f"{what} at byte {start} takes {count} bytes, the file has {self.left()} left")
        self.at = start + count
        return start

    def u32(self, what: str) -> int:
        value: int = _U32.unpack_from(self.data, self.take(4, what))[0]
        return value

    def u64(self, what: str) -> int:
        value: int = _U64.unpack_from(self.data, self.take(8, what))[0]
        return value

    def count(self, value: int, least_bytes: int, what: str) -> int:
        """Checks that `value` items of at least so many bytes can follow."""
        if value * least_bytes > self.left():
            raise self.error(f"{value} {what} cannot fit in the {self.left()} bytes left")
        return value

    def text(self, what: str, limit: int) -> str:
        length = self.u64(what)
        if length > limit:
            raise self.error(f"{what} takes {length} bytes; at most {limit} are allowed")
        start = self.take(length, what)
        return _text(bytes(self.data[start : start + length]), f"{self.label}: {what}")

    def error(self, problem: str) -> ModelFileError:
        return ModelFileError(f"{self.label}: {problem}")


class Metadata(Mapping[str, object]):
    """Keys and plain Python values. An array stays bytes until it is asked for; then its list is kept.

    Reading an array raises `ModelFileError` when its strings are not UTF-8.
    """

    def __init__(self, label: str, values: dict[str, object]) -> None:
        self._label = label
        self._values = values

    def __getitem__(self, key: str) -> object:
        value = self._values[key]
        if isinstance(value, _Array):
            label = f"{self._label}: {key}"
            value = self._values[key] = _decode_array(value.data, 0, value.kind, value.count, label)[0]
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return f"Metadata({self._label}, {len(self)} keys)"


def read_metadata(cursor: Cursor, count: int) -> Metadata:
    values: dict[str, object] = {}
    for _ in range(count):
        key = cursor.text("a key", MAX_KEY_BYTES)
        if key in values:
            raise cursor.error(f"key {key[:80]!r} is listed twice")
        values[key] = _read_value(cursor, f"the value of {key[:80]!r}")
    return Metadata(cursor.label, values)


@dataclass(frozen=True)
class _Array:
    """The encoded elements of an array: `count` of them, every length in `data` checked."""

    kind: int
    count: int
    data: bytes


def _read_value(cursor: Cursor, what: str) -> object:
    kind = cursor.u32(what)
    if kind == _STRING:
        return cursor.text(what, MAX_HEADER_BYTES)
    if kind == _ARRAY:
        start = cursor.at
        element_kind, count = _walk_array(cursor, what, 1)
        return _Array(element_kind, count, bytes(cursor.data[start + 12 : cursor.at]))
    if kind not in _SCALARS:
        raise cursor.error(f"{what} has unknown type {kind}")
    code = struct.Struct("<" + _SCALARS[kind])
    value = code.unpack_from(cursor.data, cursor.take(code.size, what))[0]
    return value != 0 if kind == _BOOL else value


def _walk_array(cursor: Cursor, what: str, depth: int) -> tuple[int, int]:
    """Moves over an array, checking every length in it. Returns the kind of its elements and their count."""
    if depth > MAX_ARRAY_DEPTH:
        raise cursor.error(f"{what}: arrays are nested deeper than {MAX_ARRAY_DEPTH}")
    kind = cursor.u32(what)
    if kind not in _LEAST_BYTES:
        raise cursor.error(f"{what} has elements of unknown type {kind}")
    count = cursor.count(cursor.u64(what), _LEAST_BYTES[kind], f"elements of {what}")
    if kind == _STRING:
        _walk_strings(cursor, what, count)
    elif kind == _ARRAY:
        for _ in range(count):
            _walk_array(cursor, what, depth + 1)
    else:
        cursor.take(count * _LEAST_BYTES[kind], what)
    return kind, count


def _walk_strings(cursor: Cursor, what: str, count: int) -> None:
    """A tight loop: a vocabulary and its merges are hundreds of thousands of strings."""
    data, at, last = cursor.data, cursor.at, len(cursor.data) - 8
    length_at = _U64.unpack_from
    for _ in range(count):
        if at > last:
            at += 8  # no room for the length: the check below refuses
            break
        at += 8 + length_at(data, at)[0]
    cursor.take(at - cursor.at, what)


def _decode_array(data: bytes, at: int, kind: int, count: int, label: str) -> tuple[list[object], int]:
    """The elements from `at` on, and where they end. Lengths in `data` were checked by `_walk_array`."""
    if kind in _SCALARS:
        code = struct.Struct(f"<{count}{_SCALARS[kind]}")
        numbers = code.unpack_from(data, at)
        return [n != 0 for n in numbers] if kind == _BOOL else list(numbers), at + code.size
    values: list[object] = []
    for _ in range(count):
        if kind == _ARRAY:
            inner, inner_count = _U32.unpack_from(data, at)[0], _U64.unpack_from(data, at + 4)[0]
            value, at = _decode_array(data, at + 12, inner, inner_count, label)
            values.append(value)
        else:
            start = at + 8
            at = start + _U64.unpack_from(data, at)[0]
            values.append(_text(data[start:at], label))
    return values, at


def _text(raw: bytes, label: str) -> str:
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        raise ModelFileError(f"{label}: {raw[:40]!r} is not UTF-8") from error
