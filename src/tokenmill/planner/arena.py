"""Working memory of the native step program: buffers between its operators, as native/arena.h carves them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.planner.packed import GROUP, PANEL

_ALIGNMENT = 64
_FLOAT = 4
# As native/scratch.h names them.
_ITEM_ROWS, _PARTIAL_ROWS, _ROWS_TOGETHER = 64, 1024, 6


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


def attention_bytes(layers: Iterable[LayerSpec], rows: int, kv_number_bytes: int, threads: int) -> int:
    """What attention needs of its own, as native/scratch.h has it.

    Args:
        rows: tokens of a step.
        kv_number_bytes: of a number in the KV cache.
    """
    width = heads = dim = unit = 0
    for layer in layers:
        padded, shared = -(-layer.head_dim // 16) * 16, layer.heads // layer.kv_heads
        width, heads = max(width, layer.heads * padded), max(heads, layer.heads)
        dim, unit = max(dim, padded), max(unit, shared, _ITEM_ROWS)
    plan = _rounded(2 * (rows + 1) * 8)
    queries = _rounded(rows * width * kv_number_bytes) + 2 * _rounded(rows * heads * _FLOAT)
    states = threads * _rounded((unit + _ROWS_TOGETHER) * (dim + 16) * _FLOAT)
    return plan + queries + states + _rounded(_PARTIAL_ROWS * (dim + 16) * _FLOAT)


def arena_shape(
    spec: ModelSpec, tokens: int, logit_rows: int, *, row_bytes: int, kv_number_bytes: int, threads: int
) -> ArenaShape:
    """The buffers of a model's program.

    Args:
        tokens: of the largest step.
        logit_rows: of it whose logits are wanted.
    """
    layers = set(spec.layers)
    mixtures = [layer.experts for layer in layers if layer.experts is not None]
    return ArenaShape(
        rows=max(tokens, logit_rows),
        hidden=spec.hidden,
        wide=max(spec.hidden, *(_wide(layer) for layer in layers)),
        deep=max(spec.hidden, *(max(each.heads * each.head_dim, each.intermediate) for each in layers)),
        row_bytes=row_bytes,
        attention=attention_bytes(layers, tokens, kv_number_bytes, threads),
        experts=max(
            (experts_bytes(tokens, spec.hidden, each.count, each.active, row_bytes) for each in mixtures),
            default=0,
        ),
    )


def _wide(layer: LayerSpec) -> int:
    """Floats of a row: queries, keys and values side by side, or a gated product in whole groups."""
    return max((layer.heads + 2 * layer.kv_heads) * layer.head_dim, -(-layer.intermediate // GROUP) * GROUP)


def _rounded(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT
