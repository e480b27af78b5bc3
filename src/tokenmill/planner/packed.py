"""How many bytes a matrix takes as the native kernels hold it: see kernels/cpu/native/abi.h."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

# Columns of a matrix, and numbers of a row, that share a scale.
GROUP = 32
# Rows of a matrix that are stored and computed together.
PANEL = 32
_ALIGNMENT = 64


class PackedFormat(IntEnum):
    """How a packed matrix stores its numbers; codes are unsigned."""

    INT8 = 0  # (code - 128) * scale
    INT4 = 1  # (code - 8) * scale
    INT4_OFFSET = 2  # code * scale + offset
    INT8_OFFSET = 3  # code * scale + offset
    BF16 = 4
    F32 = 5

    @property
    def scaled(self) -> bool:
        """Numbers are codes with a scale for each group."""
        return self < PackedFormat.BF16

    @property
    def offset(self) -> bool:
        """Each group has an offset as well."""
        return self in (PackedFormat.INT4_OFFSET, PackedFormat.INT8_OFFSET)


_GROUP_BYTES = {
    PackedFormat.INT8: 32,
    PackedFormat.INT8_OFFSET: 32,
    PackedFormat.INT4: 16,
    PackedFormat.INT4_OFFSET: 16,
    PackedFormat.BF16: 64,
    PackedFormat.F32: 128,
}


@dataclass(frozen=True)
class PackedShape:
    """A matrix [rows, columns] in panels of `PANEL` rows, padded to whole panels and groups of columns.

    Attributes:
        scale_every: groups of columns that share a scale.
        scale_bytes: of a scale or an offset: 2 (float16) or 4 (float32).
    """

    format: PackedFormat
    rows: int
    columns: int
    scale_every: int = 1
    scale_bytes: int = 2

    @property
    def panels(self) -> int:
        return -(-self.rows // PANEL)

    @property
    def groups(self) -> int:
        """Of columns."""
        return -(-self.columns // GROUP)

    @property
    def scales(self) -> int:
        """Scales of a row."""
        return -(-self.groups // self.scale_every)

    @property
    def code_bytes(self) -> int:
        """Of a panel; its scales follow."""
        return self.groups * _GROUP_BYTES[self.format] * PANEL

    @property
    def scales_bytes(self) -> int:
        """Of a panel's scales, or of its offsets."""
        return self.scales * PANEL * self.scale_bytes if self.format.scaled else 0

    @property
    def panel_bytes(self) -> int:
        parts = 2 if self.format.offset else 1
        whole = self.code_bytes + parts * self.scales_bytes
        return -(-whole // _ALIGNMENT) * _ALIGNMENT

    @property
    def nbytes(self) -> int:
        return self.panels * self.panel_bytes
