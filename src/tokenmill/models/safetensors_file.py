"""safetensors headers, and folders of them, read without trusting a single number.

Layout: eight bytes with the header's length, the header (a JSON object: name -> dtype, shape,
data_offsets), tensor data. Offsets count from the end of the header.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from itertools import pairwise
from pathlib import Path

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile
from tokenmill.models.fields import Fields
from tokenmill.models.json_file import parse_json_object, read_json_object
from tokenmill.models.stored_weights import StoredTensor
from tokenmill.models.tensor_info import TensorInfo

SINGLE_NAME = "model.safetensors"
INDEX_NAME = "model.safetensors.index.json"
MAX_HEADER_BYTES = 32 << 20
MAX_INDEX_BYTES = 32 << 20
MAX_DIMENSIONS = 8
MAX_SHARDS = 4096

# Bytes of an element. Formats that are not in `models.formats` may be listed, just not be needed.
_ELEMENT_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("BOOL", "U8", "I8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 1),
    **dict.fromkeys(("U16", "I16", "F16", "BF16"), 2),
    **dict.fromkeys(("U32", "I32", "F32"), 4),
    **dict.fromkeys(("U64", "I64", "F64", "C64"), 8),
}


def open_folder(folder: Path) -> tuple[dict[str, StoredTensor], list[DataFile]]:
    """All tensors of a folder by name, and the open files that hold them.

    `model.safetensors` alone if it is there, else the shards its index lists, else every file.

    Raises:
        ModelFileError: no weights, a broken header, an index that does not match its shards, or a tensor
            that two files hold.
    """
    placed: Mapping[str, str] | None = None
    if (folder / SINGLE_NAME).exists():
        names = [SINGLE_NAME]
    elif (folder / INDEX_NAME).exists():
        placed = _read_index(folder / INDEX_NAME)
        names = sorted(set(placed.values()))
    else:
        names = sorted(path.name for path in folder.glob("*.safetensors"))
    if not 1 <= len(names) <= MAX_SHARDS:
        raise ModelFileError(f"{folder.name}: {len(names)} weight files; 1 to {MAX_SHARDS} are allowed")
    files: list[DataFile] = []
    try:
        headers: dict[str, dict[str, StoredTensor]] = {}
        for name in names:
            files.append(DataFile(folder / name))
            headers[name] = read_header(files[-1])
        return (_merge(headers) if placed is None else _pick(headers, placed)), files
    except BaseException:
        for file in files:
            file.close()
        raise


def read_header(file: DataFile) -> dict[str, StoredTensor]:
    """Reads and checks the header of an open file, which is mapped only while this runs.

    Raises:
        ModelFileError: anything in the header contradicts the rest or the file's size.
    """
    with file.mapped(8 + MAX_HEADER_BYTES) as data:
        if len(data) < 8:
            raise ModelFileError(f"{file.name}: {file.size} bytes are no safetensors file")
        length = int.from_bytes(data[:8], "little")
        if length > MAX_HEADER_BYTES:
            raise ModelFileError(
                f"{file.name}: a header of {length} bytes; at most {MAX_HEADER_BYTES} are allowed"
            )
        if length > file.size - 8:
            raise ModelFileError(f"{file.name}: a header of {length} bytes in a file of {file.size}")
        header = parse_json_object(bytes(data[8 : 8 + length]), file.name, unique_keys=True)
    tensors = {
        name: _read_entry(file, 8 + length, name, entry)
        for name, entry in header.items()
        if name != "__metadata__"
    }
    for one, other in pairwise(sorted(tensors.values(), key=lambda t: (t.offset, t.info.nbytes))):
        if one.offset + one.info.nbytes > other.offset:
            raise ModelFileError(f"{file.name}: tensors {one.info.name!r} and {other.info.name!r} overlap")
    return tensors


def _read_entry(file: DataFile, data_start: int, name: str, entry: object) -> StoredTensor:
    label = f"{file.name}: tensor {name[:200]!r}"
    if not isinstance(entry, dict):
        raise ModelFileError(f"{label}: its entry is no JSON object")
    dtype = Fields(label, entry).text("dtype")
    if dtype not in _ELEMENT_BYTES:
        raise ModelFileError(f"{label}: unknown dtype {show(dtype)}; known are {', '.join(_ELEMENT_BYTES)}")
    shape = _sizes(label, entry, "shape", MAX_DIMENSIONS)
    offsets = _sizes(label, entry, "data_offsets", 2)
    if len(offsets) != 2:
        raise ModelFileError(f"{label}: data_offsets must be two integers")
    start, end = offsets
    size = math.prod(shape) * _ELEMENT_BYTES[dtype]
    if end - start != size:
        raise ModelFileError(
            f"{label}: {dtype} {list(shape)} takes {size} bytes, its offsets span {end - start}"
        )
    if data_start + end > file.size:
        raise ModelFileError(f"{label} would end at byte {data_start + end}, the file ends at {file.size}")
    return StoredTensor(TensorInfo(name, shape, dtype, size), file, data_start + start)


def _sizes(label: str, entry: Mapping[str, object], key: str, limit: int) -> tuple[int, ...]:
    value = entry.get(key)
    if not isinstance(value, list) or len(value) > limit:
        raise ModelFileError(f"{label}: {key} must be a list of at most {limit} integers")
    sizes = tuple(n for n in value if type(n) is int and 0 <= n < 1 << 63)
    if len(sizes) != len(value):
        raise ModelFileError(f"{label}: {key} must hold integers from 0 to 2^63 - 1")
    return sizes


def _read_index(path: Path) -> dict[str, str]:
    """Tensor name -> file name. Only files beside the index are allowed."""
    index = Fields(path.name, read_json_object(path, MAX_INDEX_BYTES))
    placed: dict[str, str] = {}
    for tensor, name in index.nested("weight_map").items():
        if not isinstance(name, str) or "/" in name or "\0" in name or not name.endswith(".safetensors"):
            raise ModelFileError(
                f"{path.name}: tensor {show(tensor)} is said to be in {show(name)}, "
                "which is no .safetensors file of this folder"
            )
        placed[tensor] = name
    return placed


def _merge(headers: Mapping[str, Mapping[str, StoredTensor]]) -> dict[str, StoredTensor]:
    merged: dict[str, StoredTensor] = {}
    for file_name, tensors in headers.items():
        for name, stored in tensors.items():
            if name in merged:
                raise ModelFileError(f"{file_name}: tensor {name!r} is also in {merged[name].file.name}")
            merged[name] = stored
    return merged


def _pick(
    headers: Mapping[str, Mapping[str, StoredTensor]], placed: Mapping[str, str]
) -> dict[str, StoredTensor]:
    for name, file_name in placed.items():
        if name not in headers[file_name]:
            raise ModelFileError(f"{file_name}: tensor {name!r} is missing; the index says it is there")
    return {name: headers[file_name][name] for name, file_name in placed.items()}
