"""Bytes of packed matrices, added up by hand."""

from __future__ import annotations

import pytest

from tokenmill.models.formats import is_known
from tokenmill.models.packed_layout import PACKED_NAMES, Member, PackedLayout

# Of 4096 x 11008 in groups of 128, 86 a row.
SHAPE = (4096, 11008)
CODES = 4096 * 11008 // 2
SCALES = 86 * 4096 * 2
ZEROS = 86 * 4096 // 2


@pytest.mark.parametrize(
    ("layout", "name", "nbytes"),
    [
        (PackedLayout("AWQ", 4, 128, zeros=True), "AWQ4", CODES + SCALES + ZEROS),
        (PackedLayout("AWQ", 4, 128, zeros=False), "AWQ4", CODES + SCALES),
        (PackedLayout("GPTQ", 4, 128, zeros=True, order=True), "GPTQ4", CODES + SCALES + ZEROS + 4 * 11008),
        (PackedLayout("GPTQ", 8, 128, zeros=True), "GPTQ8", 2 * CODES + SCALES + 2 * ZEROS),
        (PackedLayout("GPTQ", 2, 128, zeros=True), "GPTQ2", CODES // 2 + SCALES + ZEROS // 2),
        (PackedLayout("GPTQ", 4, None, zeros=True), "GPTQ4", CODES + 4096 * 2 + 4096 // 2),
        (
            PackedLayout("CT-packed", 4, 128, zeros=True, scale_type="BF16"),
            "CT4",
            CODES + SCALES + ZEROS + 16,
        ),
        (PackedLayout("CT-int", 8, None, zeros=False, scale_type="F32"), "CT8", 2 * CODES + 4096 * 4),
        (PackedLayout("CT-int", 8, None, zeros=False, one_scale=True), "CT8", 2 * CODES + 2),
    ],
)
def test_a_matrix_takes_the_bytes_of_all_its_tensors(layout: PackedLayout, name: str, nbytes: int) -> None:
    assert layout.name == name
    assert layout.nbytes(SHAPE) == nbytes


def test_words_at_the_end_of_a_row_count_whole() -> None:
    """33 codes of four bits are five words; 52 zero points are seven."""
    members = PackedLayout("CT-packed", 4, None, zeros=True).members((52, 33))
    assert members["weight_packed"] == Member("I32", (52, 5))
    assert members["weight_zero_point"] == Member("I32", (7, 1))


def test_every_name_can_be_loaded_and_no_other() -> None:
    assert all(is_known(name) for name in PACKED_NAMES)
    assert is_known("Q4_1") and not is_known("AWQ8") and not is_known("I8")
