"""GGUF headers: metadata and the list of tensors, read without trusting a single number.

Layout (ggml's docs/gguf.md): magic, version, tensor count, key count, the keys with their values, the
tensor entries, padding to the alignment, tensor data.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile
from tokenmill.models.formats import FORMATS, nbytes, supported_formats
from tokenmill.models.gguf_values import MAX_HEADER_BYTES, Cursor, read_metadata

MAGIC = b"GGUF"
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_NAME_BYTES = 64
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20

# ggml's type numbers. Those that are not in FORMATS are listed only to be refused by name.
_TYPE_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS IQ3_XXS "
    "IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 Q4_0_8_8 TQ1_0 TQ2_0 "
    "IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4"
)
TYPE_NAMES: Mapping[int, str] = dict(enumerate(_TYPE_NAMES.split()))
# Least bytes of a key: its length, a type, one byte of value. Of a tensor: the length of its name, the
# number of dimensions, one of them, type, offset.
_LEAST_KEY_BYTES = 8 + 4 + 1
_LEAST_TENSOR_BYTES = 8 + 4 + 8 + 4 + 8


@dataclass(frozen=True)
class GgufTensor:
    """`shape` is [out, in] (the file lists it reversed); `offset` counts from the start of `file`."""

    name: str
    shape: tuple[int, ...]
    format: str
    file: DataFile
    offset: int
    nbytes: int


@dataclass(frozen=True)
class GgufHeader:
    metadata: Mapping[str, object]
    tensors: Mapping[str, GgufTensor]


def read_header(file: DataFile) -> GgufHeader:
    """Reads and checks the header of an open file, which is mapped only while this runs.

    Raises:
        ModelFileError: not GGUF, not version 2 or 3, a tensor in an unknown format, or anything in it
            that contradicts the rest or the file's size.
    """
    with file.mapped(MAX_HEADER_BYTES) as data:
        cursor = Cursor(data, file)
        tensor_count, key_count = _read_counts(cursor)
        metadata = read_metadata(cursor, key_count)
        entries = _read_entries(cursor, tensor_count)
        alignment = _alignment(cursor, metadata)
        data_start = -(-cursor.at // alignment) * alignment
    tensors = [_place(file, entry, data_start, alignment) for entry in entries]
    _refuse_overlaps(file, tensors)
    return GgufHeader(metadata, MappingProxyType({tensor.name: tensor for tensor in tensors}))


def _read_counts(cursor: Cursor) -> tuple[int, int]:
    magic = bytes(cursor.data[:4])
    if magic != MAGIC:
        raise cursor.error(f"not a GGUF file: it starts with {magic!r}, not {MAGIC!r}")
    cursor.take(4, "the magic")
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        raise cursor.error("big-endian GGUF is not supported")
    if version not in (2, 3):
        raise cursor.error(f"GGUF version {version} is not supported; supported are 2 and 3")
    tensor_count, key_count = cursor.u64("the tensor count"), cursor.u64("the key count")
    if tensor_count > MAX_TENSORS or key_count > MAX_KEYS:
        raise cursor.error(
            f"{tensor_count} tensors and {key_count} keys; at most {MAX_TENSORS} and {MAX_KEYS} are allowed"
        )
    cursor.count(key_count * _LEAST_KEY_BYTES + tensor_count * _LEAST_TENSOR_BYTES, 1, "bytes of entries")
    return tensor_count, key_count


@dataclass(frozen=True)
class _Entry:
    """A tensor as listed: `offset` counts from the start of the tensor data."""

    name: str
    shape: tuple[int, ...]
    type_number: int
    offset: int


def _read_entries(cursor: Cursor, count: int) -> list[_Entry]:
    entries: dict[str, _Entry] = {}
    for _ in range(count):
        entry = _read_entry(cursor)
        if entry.name in entries:
            raise cursor.error(f"tensor {entry.name!r} is listed twice")
        entries[entry.name] = entry
    return list(entries.values())


def _read_entry(cursor: Cursor) -> _Entry:
    name = cursor.text("a tensor's name", MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    dimensions = cursor.u32(what)
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.error(f"{what} has {dimensions} dimensions; 1 to {MAX_DIMENSIONS} are allowed")
    sizes = [cursor.u64(what) for _ in range(dimensions)]
    if 0 in sizes:
        raise cursor.error(f"{what} has an empty dimension")
    return _Entry(name, tuple(reversed(sizes)), cursor.u32(what), cursor.u64(what))


def _alignment(cursor: Cursor, metadata: Mapping[str, object]) -> int:
    value = metadata.get("general.alignment", 32)
    if type(value) is not int or not 0 < value <= MAX_ALIGNMENT or value & (value - 1):
        raise cursor.error(f"general.alignment is {value!r}; it must be a power of two up to {MAX_ALIGNMENT}")
    return value


def _place(file: DataFile, entry: _Entry, data_start: int, alignment: int) -> GgufTensor:
    """Checks an entry against the file: known format, whole blocks, aligned, inside."""
    prefix = f"{file.name}: tensor {entry.name!r}"
    layout = FORMATS.get(TYPE_NAMES.get(entry.type_number, ""))
    if layout is None:
        name = TYPE_NAMES.get(entry.type_number, f"number {entry.type_number}")
        raise ModelFileError(f"{prefix} is in format {name}; {supported_formats()}")
    if entry.shape[-1] % layout.block:
        raise ModelFileError(
            f"{prefix}: {layout.name} is stored in blocks of {layout.block}, its rows have {entry.shape[-1]}"
        )
    if entry.offset % alignment:
        raise ModelFileError(f"{prefix} is at offset {entry.offset}, which is no multiple of {alignment}")
    start, size = data_start + entry.offset, nbytes(layout.name, entry.shape)
    if start + size > file.size:
        raise ModelFileError(f"{prefix} would end at byte {start + size}, the file ends at {file.size}")
    return GgufTensor(entry.name, entry.shape, layout.name, file, start, size)


def _refuse_overlaps(file: DataFile, tensors: list[GgufTensor]) -> None:
    for one, other in pairwise(sorted(tensors, key=lambda tensor: tensor.offset)):
        if one.offset + one.nbytes > other.offset:
            raise ModelFileError(f"{file.name}: tensors {one.name!r} and {other.name!r} overlap")
