"""Numbers of rows that are computed, and what their compiled products take."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tokenmill.models.spec import LayerSpec, ModelSpec, RopeSpec
from tokenmill.planner.products import COMPILED_BYTES, compiled_bytes, filled_rows

LAYER = LayerSpec(heads=4, kv_heads=2, head_dim=8, intermediate=48, scale=1.0, rope=RopeSpec(1e4, 8))
SPEC = ModelSpec("llama", 100, 16, (LAYER, LAYER), 1e-5, 128)


@pytest.mark.parametrize(
    ("rows", "filled"),
    [(0, 0), (1, 8), (8, 8), (9, 16), (33, 48), (65, 96), (257, 384), (512, 512), (513, 768), (1025, 1280)],
)
def test_rows_are_filled_up_to_the_next_of_few_numbers(rows: int, filled: int) -> None:
    assert filled_rows(rows) == filled


def test_steps_of_any_size_are_computed_in_few_numbers_of_rows() -> None:
    # 12 up to 512, then 768 and 1024
    assert len({filled_rows(rows) for rows in range(1, 1025)}) == 14


def test_rows_are_multiples_of_8_and_beyond_16_at_most_a_third_is_padding() -> None:
    for rows in range(1, 3000):
        filled = filled_rows(rows)
        assert filled >= rows and filled % 8 == 0
        assert rows <= 16 or 3 * (filled - rows) <= filled


def test_each_shape_of_matrix_is_compiled_for_each_number_of_rows() -> None:
    # qkv [64, 16], out [16, 32], gate and up [96, 16], down [16, 48]: 4 shapes, in 14 numbers of up to 1024 rows;
    # logits in 7 of up to 96.
    assert compiled_bytes(SPEC, 1000, 80) == (4 * 14 + 7) * COMPILED_BYTES
    # The same layer again adds nothing; another MLP two shapes, 8 rows at once one number.
    other = replace(SPEC, layers=(LAYER, replace(LAYER, intermediate=40)))
    assert compiled_bytes(other, 8, 1) == (6 + 1) * COMPILED_BYTES
