"""Byte layouts against the gguf package's table."""

from __future__ import annotations

import gguf
import pytest

from tokenmill.core.errors import ModelFileError
from tokenmill.models.formats import FORMATS, nbytes


@pytest.mark.parametrize("name", FORMATS)
def test_block_and_bytes_are_those_of_ggml(name: str) -> None:
    layout = FORMATS[name]
    assert (layout.block, layout.block_bytes) == gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[name]]
    assert layout.name == name


@pytest.mark.parametrize(
    ("name", "shape", "expected"),
    [
        ("F32", (3, 5), 60),
        ("BF16", (7,), 14),
        ("F32", (), 4),
        ("Q4_1", (576, 1536), 552_960),  # 576 rows x 48 blocks x 20 bytes
        ("Q8_0", (49152, 576), 30_081_024),
        ("Q6_K", (2, 3, 512), 2520),  # 12 blocks x 210
    ],
)
def test_a_tensor_takes_whole_blocks_a_row(name: str, shape: tuple[int, ...], expected: int) -> None:
    assert nbytes(name, shape) == expected


def test_rows_that_are_no_whole_blocks_are_refused() -> None:
    with pytest.raises(ModelFileError, match=r"rows of 33 .* blocks of 32 \(Q4_0\)"):
        nbytes("Q4_0", (64, 33))


def test_an_unknown_format_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ModelFileError, match="IQ2_XS is not supported; supported are F32, F16"):
        nbytes("IQ2_XS", (1, 256))
