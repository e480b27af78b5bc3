"""How many rows a product is computed with, and what its compiled forms take.

The libraries compile a product in bfloat16 once for every shape of matrix and number of rows, and keep it. So
products have one of few numbers of rows, and those that a step may have are counted in the plan.
"""

from __future__ import annotations

from bisect import bisect_left

from tokenmill.models.spec import LayerSpec, ModelSpec

# Multiples of 8, at most half again the one before, so that of more than 8 rows at most a third are padding.
LADDER = (8, 16, 24, 32, 48, 64, 96, 128, 192, 256, 384, 512)
# Beyond the ladder, rows are filled up to a multiple of this.
LONG_ROWS = 256
# One compiled product, as measured.
COMPILED_BYTES = 640 << 10


def filled_rows(rows: int) -> int:
    """Rows, padding included, of a product that is asked for `rows`."""
    if rows > LADDER[-1]:
        return -(-rows // LONG_ROWS) * LONG_ROWS
    return LADDER[bisect_left(LADDER, rows)] if rows else 0


def compiled_bytes(spec: ModelSpec, rows: int, logit_rows: int) -> int:
    """Of every product of a model in bfloat16, when all numbers of rows have been seen.

    Args:
        rows: most rows of a step.
        logit_rows: most of them whose logits are computed at once.
    """
    shapes = {shape for layer in set(spec.layers) for shape in _matrices(layer, spec.hidden)}
    return (len(shapes) * _steps(rows) + _steps(logit_rows)) * COMPILED_BYTES


def _matrices(layer: LayerSpec, hidden: int) -> tuple[tuple[int, int], ...]:
    """[out, in] of the matrices of a layer, as they are held: side by side where their input is the same."""
    heads = layer.heads * layer.head_dim
    return (
        (heads + 2 * layer.kv_heads * layer.head_dim, hidden),
        (hidden, heads),
        (2 * layer.intermediate, hidden),
        (hidden, layer.intermediate),
    )


def _steps(rows: int) -> int:
    """Numbers of rows a product of at most `rows` may have."""
    filled = filled_rows(rows)
    if filled <= LADDER[-1]:
        return bisect_left(LADDER, filled) + 1 if filled else 0
    return len(LADDER) + (filled - LADDER[-1]) // LONG_ROWS
