"""Loads checked tensors from files, whatever container they were listed in."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Protocol

from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile
from tokenmill.models.dequantize import dequantize, split
from tokenmill.models.formats import FORMATS, is_known, supported_formats
from tokenmill.models.grouped import Grouped
from tokenmill.models.spec import ModelSpec
from tokenmill.models.tensor_info import TensorInfo

if TYPE_CHECKING:
    import torch
    from torch import Tensor

# Numbers dequantized at once: scratch stays in the cache and is no second copy of a large tensor.
_CHUNK = 1 << 17


class Stored(Protocol):
    """What a canonical name stands for in a container: one tensor of a file, a part of one, or several."""

    @property
    def info(self) -> TensorInfo: ...

    def fill(self, out: Tensor) -> None:
        """Reads the numbers into `out`, of `info.shape` and any float type."""
        ...

    def grouped(self) -> Grouped | None:
        """The numbers as codes and scales, in memory of their own; None where they are not quantized."""
        ...

    def rows(self, name: str, start: int, count: int) -> Stored:
        """Rows `start` to `start + count` as a tensor of their own, called `name`.

        A row is what the last dimension runs along (one number of a vector): those of stacked matrices,
        [stack, out, in], count through, and some of them are a matrix [count, in].
        """
        ...


@dataclass(frozen=True)
class StoredTensor:
    """Where a tensor's bytes are.

    Attributes:
        offset: absolute, in `file`.
        paired_rows: rows of a head whose rotary components are stored as neighbours (2i, 2i + 1) and
            are loaded as halves (i, i + paired_rows / 2); 0 loads rows as they are.
        plus: added to every number (Gemma stores its norm weights less 1).
    """

    info: TensorInfo
    file: DataFile
    offset: int
    paired_rows: int = 0
    plus: float = 0.0

    def fill(self, out: Tensor) -> None:
        _fill(self, out)
        if self.plus:
            out += self.plus

    def grouped(self) -> Grouped | None:
        if FORMATS[self.info.format].block == 1 or len(self.info.shape) != 2 or self.plus:
            return None
        return _grouped(self)

    def raw(self, start: int, count: int) -> Tensor:
        """Rows `start` to `start + count` of a matrix or vector as stored: uint8 [count, row bytes]."""
        return _raw(self, start, count, self.info.nbytes // self.info.shape[0])

    def rows(self, name: str, start: int, count: int) -> StoredTensor:
        shape = self.info.shape
        inner = shape[-1:] if len(shape) > 1 else ()
        row_bytes = self.info.nbytes // (math.prod(shape) // math.prod(inner))
        info = TensorInfo(name, (count, *inner), self.info.format, count * row_bytes)
        return replace(self, info=info, offset=self.offset + start * row_bytes)


class StoredWeights:
    """A `WeightFile` over open files, which it owns."""

    def __init__(self, stored: Mapping[str, Stored], files: Sequence[DataFile]) -> None:
        self._stored = stored
        self._files = files
        self.tensors: Mapping[str, TensorInfo] = MappingProxyType({n: t.info for n, t in stored.items()})
        self.nbytes = sum(file.size for file in files)

    def load(self, name: str, dtype: torch.dtype) -> Tensor:
        import torch

        stored = self._find(name)
        result = torch.empty(stored.info.shape, dtype=dtype)
        with _one_thread():
            stored.fill(result)
        return result

    def grouped(self, name: str) -> Grouped | None:
        with _one_thread():
            return self._find(name).grouped()

    def _find(self, name: str) -> Stored:
        stored = self._stored.get(name)
        if stored is None:
            raise ModelFileError(f"the model has no tensor {name}")
        return stored

    def close(self) -> None:
        for file in self._files:
            file.close()


@contextlib.contextmanager
def _one_thread() -> Iterator[None]:
    """PyTorch on the calling thread alone.

    Chunks are bound by memory, so a second thread gains nothing, and thousands of short parallel regions
    stall when another process wants the cores (measured on two: 0.3 s for the small model, or 2-8 s).
    """
    import torch

    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _fill(stored: StoredTensor, result: Tensor) -> None:
    # A vector is one row, unless its elements are the rows that move (the bias of q and k).
    columns = 1 if stored.paired_rows and result.dim() == 1 else result.shape[-1]
    matrix = result.view(-1, columns)
    for rows, raw in _chunks(stored, *matrix.shape):
        dequantize(stored.info.format, raw, matrix[rows])


def _grouped(stored: StoredTensor) -> Grouped:
    """The codes of a matrix in a block format, put together chunk by chunk."""
    import torch

    rows, columns = stored.info.shape
    group = 0
    codes, scales, offsets = [], [], []
    for _, raw in _chunks(stored, rows, columns):
        parts = split(stored.info.format, raw)
        group = parts.codes.shape[-1]
        codes.append(parts.codes.reshape(-1, columns))
        scales.append(parts.scales.reshape(-1, columns // group))
        if parts.offsets is not None:
            offsets.append(parts.offsets.reshape(-1, columns // group))
    return Grouped(
        codes=torch.cat(codes),
        scales=torch.cat(scales),
        zeros=None,
        offsets=torch.cat(offsets) if offsets else None,
        bits=FORMATS[stored.info.format].bits,
        group=group,
    )


def _chunks(stored: StoredTensor, rows: int, columns: int) -> Iterator[tuple[slice, Tensor]]:
    """Bytes of whole rows at a time, uint8 [rows, row bytes], and where they go.

    Rotary rows are moved into place: a chunk of them holds whole heads.
    """
    pair_rows = stored.paired_rows
    row_bytes = stored.info.nbytes // rows
    step = max(1, _CHUNK // columns)
    if pair_rows:
        step = -(-step // pair_rows) * pair_rows
    for start in range(0, rows, step):
        count = min(step, rows - start)
        raw = _raw(stored, start, count, row_bytes)
        if pair_rows:
            raw = raw.view(-1, pair_rows // 2, 2, row_bytes).transpose(1, 2).reshape(-1, row_bytes)
        yield slice(start, start + count), raw


def _raw(stored: StoredTensor, start: int, count: int, row_bytes: int) -> Tensor:
    """Bytes of `count` rows as they are stored, uint8 [count, row_bytes]."""
    import torch

    buffer = bytearray(count * row_bytes)
    stored.file.read_into(memoryview(buffer), stored.offset + start * row_bytes)
    return torch.frombuffer(buffer, dtype=torch.uint8).view(count, row_bytes)


def select(spec: ModelSpec, stored: Mapping[str, Stored], label: str) -> dict[str, Stored]:
    """The tensors a model needs, each checked; whatever else the file holds is left out.

    Raises:
        ModelFileError: one is missing, has another shape, or is in a format that cannot be read.
    """
    needed = {tensor.name: tensor.shape for tensor in spec.tensors()}
    missing = [name for name in needed if name not in stored]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise ModelFileError(f"{label}: tensor {missing[0]}{more} is missing")
    for name, shape in needed.items():
        info = stored[name].info
        if info.shape != shape:
            raise ModelFileError(
                f"{label}: tensor {name} has shape {list(info.shape)}, "
                f"the configuration asks for {list(shape)}"
            )
        if not is_known(info.format):
            raise ModelFileError(f"{label}: tensor {name} is in format {info.format}; {supported_formats()}")
    return {name: stored[name] for name in needed}
