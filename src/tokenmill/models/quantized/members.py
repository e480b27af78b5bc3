"""The tensors of one quantized module: held against their layout, and read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenmill.core.errors import ModelFileError
from tokenmill.models.fields import MAX_VOCAB, MAX_WIDTH
from tokenmill.models.packed_layout import SCALE_TYPES, PackedLayout
from tokenmill.models.stored_weights import StoredTensor

if TYPE_CHECKING:
    from torch import Tensor

_COMPARED_BYTES = 1 << 16


@dataclass(frozen=True)
class Module:
    """The tensors called `name`.* by what follows the name. Nothing of them is checked yet."""

    name: str
    tensors: Mapping[str, StoredTensor]

    def member(self, part: str, dimensions: int) -> StoredTensor:
        """
        Raises:
            ModelFileError: it is missing, or has another number of dimensions or none of any size.
        """
        found = self._find(part)
        shape = found.info.shape
        if len(shape) != dimensions or 0 in shape:
            raise self.error(part, f"has shape {list(shape)}; it must have {dimensions} dimensions, none 0")
        return found

    def scale_type(self, part: str) -> str:
        """Number format of the scales.

        Raises:
            ModelFileError: they are missing, or in no format that scales have.
        """
        found = self._find(part)
        if found.info.format not in SCALE_TYPES:
            raise self.error(part, f"is {found.info.format}; scales must be {', '.join(SCALE_TYPES)}")
        return found.info.format

    def check(self, layout: PackedLayout, shape: tuple[int, int]) -> None:
        """Holds every tensor of the layout against a matrix of `shape`.

        Raises:
            ModelFileError: one is missing or has another type or shape, groups do not fill a row, or the
                matrix is larger than any model's.
        """
        if not (1 <= shape[0] <= MAX_VOCAB and 1 <= shape[1] <= MAX_WIDTH):
            raise ModelFileError(
                f"{self.name}: a matrix of {list(shape)}; at most {[MAX_VOCAB, MAX_WIDTH]} is allowed"
            )
        if layout.group and shape[1] % layout.group:
            raise ModelFileError(
                f"{self.name}: rows of {shape[1]} numbers are no whole number of groups of {layout.group}"
            )
        for part, wanted in layout.members(shape).items():
            found = self._find(part)
            if found.info.format != wanted.dtype:
                raise self.error(part, f"is {found.info.format}; it must be {wanted.dtype}")
            if found.info.shape != wanted.shape:
                raise self.error(
                    part,
                    f"has shape {list(found.info.shape)}; for {layout.name} of {list(shape)} in groups of "
                    f"{layout.group or shape[1]} it must be {list(wanted.shape)}",
                )

    def column_groups(self, part: str, columns: int, group: int, *, unused: bool = False) -> bytes | None:
        """The checked group of each column; None where groups are neighbouring columns in order.

        Args:
            unused: the writer may not have filled the member: all zeros stand for that order too.

        Raises:
            ModelFileError: not every group has exactly `group` columns.
        """
        stored = self.tensors[part]
        raw = bytearray(stored.info.nbytes)
        stored.file.read_into(memoryview(raw), stored.offset)
        numbers = memoryview(raw).cast("i").tolist()
        counts = Counter(numbers)
        if (unused and counts == {0: columns}) or numbers == [column // group for column in range(columns)]:
            return None
        if counts != dict.fromkeys(range(columns // group), group):
            low, high = min(counts), max(counts)
            raise self.error(
                part,
                f"must name each group from 0 to {columns // group - 1} {group} times; it holds {low} to "
                f"{high}, one of them {max(counts.values())} times",
            )
        return bytes(raw)

    def holds_only(self, part: str, byte: int) -> bool:
        """Whether every byte of a member is this one."""
        stored = self.tensors[part]
        for start in range(0, stored.info.nbytes, _COMPARED_BYTES):
            raw = bytearray(min(_COMPARED_BYTES, stored.info.nbytes - start))
            stored.file.read_into(memoryview(raw), stored.offset + start)
            if raw.count(byte) != len(raw):
                return False
        return True

    def _find(self, part: str) -> StoredTensor:
        found = self.tensors.get(part)
        if found is None:
            raise ModelFileError(f"tensor {self.name}.{part} is missing; {self.name} is quantized")
        return found

    def error(self, part: str, what: str) -> ModelFileError:
        return ModelFileError(f"{self.tensors[part].file.name}: tensor {self.name}.{part} {what}")


def read_scales(stored: StoredTensor) -> Tensor:
    """Scales as they lie in the file, float32.

    Raises:
        ModelFileError: one is not finite.
    """
    import torch

    scales = torch.empty(stored.info.shape, dtype=torch.float32)
    stored.fill(scales)
    if not bool(scales.isfinite().all()):
        raise ModelFileError(
            f"{stored.file.name}: tensor {stored.info.name} holds a scale that is not a finite number"
        )
    return scales
