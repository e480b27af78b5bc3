"""Working memory of the native step program: buffers between its operators, as native/arena.h carves them."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.planner.packed import GROUP, PANEL

_ALIGNMENT = 64
_FLOAT = 4


@dataclass(frozen=True)
class ArenaShape:
    """What the buffers' sizes follow from.

    Attributes:
        rows: the larger of the tokens of a step and its rows of logits.
        wide: widest row of floats: queries, keys and values, a gated product, the hidden size.
        deep: longest row that is multiplied.
        row_bytes: of a number in the rows of products.
        attention: bytes attention needs of its own.
        experts: bytes experts need of their own.
    """

    rows: int
    hidden: int
    wide: int
    deep: int
    row_bytes: int
    attention: int = 0
    experts: int = 0

    def parts(self) -> dict[str, int]:
        """Bytes of each buffer, in order; each begins at a multiple of 64."""
        groups = -(-self.deep // GROUP)
        quantized = self.rows * groups * _FLOAT
        parts = {
            "stream": self.rows * self.hidden * _FLOAT,
            "branch": self.rows * self.hidden * _FLOAT,
            "wide": self.rows * self.wide * _FLOAT,
        }
        for name in ("rows0", "rows1"):
            parts[f"{name}.codes"] = self.rows * groups * GROUP * self.row_bytes
            parts |= {f"{name}.{part}": quantized for part in ("scales", "sums", "less")}
        return parts | {"attention": self.attention, "experts": self.experts}

    def offsets(self) -> dict[str, int]:
        """Where each buffer begins."""
        found, at = {}, 0
        for name, size in self.parts().items():
            found[name] = at
            at += _rounded(size)
        return found

    @property
    def nbytes(self) -> int:
        return sum(_rounded(size) for size in self.parts().values())


def experts_bytes(rows: int, hidden: int, experts: int, active: int, row_bytes: int) -> int:
    """What a mixture of experts needs of its own, as native/scratch.h carves it.

    Args:
        rows: tokens of a step.
        active: experts of a row.
    """
    groups = -(-hidden // GROUP)
    places = rows * active * _FLOAT
    scores = rows * -(-experts // PANEL) * PANEL * _FLOAT
    codes = rows * groups * GROUP * row_bytes
    quantized = rows * groups * _FLOAT
    parts = (scores, places, places, places, (experts + 1) * _FLOAT, codes, quantized, quantized, quantized)
    return sum(_rounded(size) for size in parts)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
