"""Packed matrices of models on disk, so that the next start reads them straight into place.

A file is a header, then the matrices as they lie in memory, each from a whole page on. Pages are added up
once they are read: what was damaged or cut short is dropped, and the model packed again.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import msgspec
import torch

from tokenmill.core.home import default_home
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.memory import committed
from tokenmill.models.storage import model_files, state_of
from tokenmill.planner.packed import PackedFormat, PackedShape
from tokenmill.planner.packing import Quantization

log = logging.getLogger(__name__)

# To be raised whenever the same weights would be packed into other bytes.
LAYOUT_VERSION = 1
# Four models of seven billion parameters in four bits.
LIMIT_BYTES = 20 << 30
# Left free on the disk.
SPARE_BYTES = 1 << 30
ABANDONED_SECONDS = 3600.0

_MAGIC = b"tokenmill packed"
_PAGE = 4096
_MAX_HEADER = 64 << 20
_DIGEST_BYTES = 16
_SUFFIX, _UNFINISHED = ".packed", ".writing-"

# What a matrix was packed from: names of its sources, in order.
Sources = tuple[str, ...]


@dataclass(frozen=True)
class PackedModel:
    """A packed model and what its self-test found.

    Attributes:
        matrices: by their sources; several where those are packed differently.
        verdict: whatever the test reports: JSON.
    """

    matrices: Mapping[Sources, Sequence[PackedMatrix]]
    verdict: Mapping[str, object]


class _Matrix(msgspec.Struct):
    """Where a matrix is, `at` bytes from the first page of data."""

    sources: Sources
    format: int
    rows: int
    columns: int
    scale_every: int
    scale_bytes: int
    gated: bool
    exact: bool
    at: int


class _Header(msgspec.Struct):
    verdict: dict[str, object]
    data_bytes: int
    data_digest: str
    matrices: list[_Matrix]


def cache_key(model: Path, wanted: Quantization, *settings: str) -> str:
    """Names the packed form of a model's files, wherever they lie.

    Args:
        settings: whatever else decides the verdict, such as the self-test's text and gate.
    """
    digest = hashlib.blake2b(digest_size=16)
    for part in (str(LAYOUT_VERSION), state_of(model_files(model)), wanted, *settings):
        raw = part.encode("utf-8", "surrogateescape")
        digest.update(len(raw).to_bytes(8, "little") + raw)
    return digest.hexdigest()


class PackCache:
    """A folder of packed models, of which the least recently used are dropped.

    It never stands in the way: what cannot be read is not there, what cannot be written is packed again.

    Args:
        folder: `packed` in the home by default.
        limit: bytes all files may take together.
    """

    def __init__(self, folder: Path | None = None, limit: int = LIMIT_BYTES) -> None:
        self._folder = folder or default_home() / "packed"
        self._limit = limit

    def load(self, key: str) -> PackedModel | None:
        """The model of a key; None where there is none whole."""
        path = self._path(key)
        try:
            with path.open("rb", buffering=0) as file:
                model = _read(file)
        except FileNotFoundError:
            return None
        except (OSError, ValueError) as error:
            log.warning("packed weights in %s are made again: %s", path.name, error)
            with contextlib.suppress(OSError):
                path.unlink()
            return None
        with contextlib.suppress(OSError):
            os.utime(path)
        return model

    def store(self, key: str, model: PackedModel) -> bool:
        """Whether the model is kept now. Nobody sees a file before it is complete."""
        header, size = _header(model)
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if size > self._limit or size + SPARE_BYTES > shutil.disk_usage(self._folder).free:
                log.info("packed weights are not kept: %d MiB are too many", size >> 20)
                return False
            descriptor, name = tempfile.mkstemp(prefix=_UNFINISHED, dir=self._folder)
            try:
                with os.fdopen(descriptor, "wb") as file:
                    _write(file, header, _matrices(model))
                Path(name).replace(self._path(key))
            except BaseException:
                Path(name).unlink(missing_ok=True)
                raise
            self._drop_old(self._path(key))
        except OSError as error:
            log.info("packed weights are not kept: %s", error.strerror)
            return False
        return True

    def _path(self, key: str) -> Path:
        return self._folder / f"{key}{_SUFFIX}"

    def _drop_old(self, newest: Path) -> None:
        """Files beyond the limit, and what a killed process left. Another process may do the same."""
        left = self._limit - _status(newest)[1]
        others = [path for path in self._folder.glob(f"*{_SUFFIX}") if path != newest]
        for path in sorted(others, key=_status, reverse=True):
            left -= _status(path)[1]
            if left < 0:
                with contextlib.suppress(OSError):
                    path.unlink()
        for path in self._folder.glob(f"{_UNFINISHED}*"):
            if _status(path)[0] < time.time() - ABANDONED_SECONDS:
                with contextlib.suppress(OSError):
                    path.unlink()


def _status(path: Path) -> tuple[float, int]:
    """Time of last use and size."""
    try:
        facts = path.stat()
    except OSError:
        return 0.0, 0
    return facts.st_mtime, facts.st_size


def _matrices(model: PackedModel) -> Iterable[PackedMatrix]:
    return (matrix for matrices in model.matrices.values() for matrix in matrices)


def _header(model: PackedModel) -> tuple[bytes, int]:
    """Everything before the data, and the size of the whole file."""
    entries: list[_Matrix] = []
    at, digest = 0, hashlib.blake2b(digest_size=_DIGEST_BYTES)
    for sources, matrices in model.matrices.items():
        for matrix in matrices:
            s = matrix.shape
            facts = (s.format, s.rows, s.columns, s.scale_every, s.scale_bytes, matrix.gated, matrix.exact)
            entries.append(_Matrix(sources, *facts, at))
            at += _whole_pages(matrix.data.nbytes)
            digest.update(_page_sums(matrix.data.view(-1)))
    header = msgspec.json.encode(_Header(dict(model.verdict), at, digest.hexdigest(), entries))
    own = hashlib.blake2b(header, digest_size=_DIGEST_BYTES).digest()
    whole = _MAGIC + len(header).to_bytes(8, "little") + own + header
    whole += bytes(-len(whole) % _PAGE)
    return whole, len(whole) + at


def _write(file: BinaryIO, header: bytes, matrices: Iterable[PackedMatrix]) -> None:
    file.write(header)
    for matrix in matrices:
        file.write(matrix.data.numpy().data.cast("B"))
        file.write(bytes(-matrix.data.nbytes % _PAGE))


def _read(file: BinaryIO) -> PackedModel:
    """
    Raises:
        ValueError: the file is damaged.
        OSError: it cannot be read.
    """
    start = bytearray(len(_MAGIC) + 8 + _DIGEST_BYTES)
    _fill(file, memoryview(start))
    size = int.from_bytes(start[len(_MAGIC) : len(_MAGIC) + 8], "little")
    if start[: len(_MAGIC)] != _MAGIC or size > _MAX_HEADER:
        raise ValueError("it is no file of packed weights")
    raw = bytearray(size)
    _fill(file, memoryview(raw))
    if hashlib.blake2b(raw, digest_size=_DIGEST_BYTES).digest() != start[-_DIGEST_BYTES:]:
        raise ValueError("its header is damaged")
    header = msgspec.json.decode(raw, type=_Header)
    begin = _whole_pages(len(start) + size)
    if os.fstat(file.fileno()).st_size != begin + header.data_bytes:
        raise ValueError("it was cut short")
    file.seek(begin)
    data = committed((header.data_bytes,), torch.uint8)
    _fill(file, data.numpy().data)
    digest = hashlib.blake2b(_page_sums(data), digest_size=_DIGEST_BYTES)
    if digest.hexdigest() != header.data_digest:
        raise ValueError("its data is damaged")
    matrices: dict[Sources, list[PackedMatrix]] = {}
    for entry in header.matrices:
        matrices.setdefault(entry.sources, []).append(_matrix(entry, data))
    return PackedModel(matrices, header.verdict)


def _matrix(entry: _Matrix, data: torch.Tensor) -> PackedMatrix:
    """
    Raises:
        ValueError: the entry is of no matrix inside the data.
    """
    if min(entry.rows, entry.columns, entry.scale_every) < 1 or entry.scale_bytes not in (2, 4):
        raise ValueError("its header makes no sense")
    form = PackedFormat(entry.format)
    shape = PackedShape(form, entry.rows, entry.columns, entry.scale_every, entry.scale_bytes)
    if entry.at < 0 or entry.at % _PAGE or entry.at + shape.nbytes > len(data):
        raise ValueError("its header makes no sense")
    panels = data[entry.at : entry.at + shape.nbytes].view(shape.panels, shape.panel_bytes)
    return PackedMatrix(shape, panels, entry.gated, entry.exact)


def _fill(file: BinaryIO, buffer: memoryview) -> None:
    """
    Raises:
        ValueError: the file ends before the buffer is full.
    """
    done = 0
    while done < len(buffer):
        count = os.readv(file.fileno(), [buffer[done:]])
        if count == 0:
            raise ValueError("it was cut short")
        done += count


def _whole_pages(size: int) -> int:
    return -(-size // _PAGE) * _PAGE


def _page_sums(data: torch.Tensor) -> bytes:
    """Sums of the 64-bit words of each page; the last may be incomplete.

    As fast as memory is read, where a digest of every byte would take seconds on a large model; and no single
    damaged word, lost page or page in another's place goes unseen.
    """
    words = data.view(torch.int64)
    whole = len(words) // (_PAGE // 8) * (_PAGE // 8)
    sums = words[:whole].view(-1, _PAGE // 8).sum(dim=1)
    if whole < len(words):
        sums = torch.cat((sums, words[whole:].sum()[None]))
    return sums.numpy().tobytes()
