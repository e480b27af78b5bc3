"""The form every quantized matrix is opened into: its numbers are those of the container, to the last bit."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch

from support.ggml_blocks import random_blocks
from support.model_files import HEAD_DIM, HIDDEN, gguf_tensors, write_folder, write_gguf
from tokenmill.core.errors import ModelFileError
from tokenmill.models.grouped import Grouped
from tokenmill.models.source import open_model

# Bits, columns that share a scale, and whether numbers are code * scale alone: ggml's block structs.
GGML = {
    "Q4_0": (4, 32, True),
    "Q4_1": (4, 32, False),
    "Q5_0": (5, 32, True),
    "Q5_1": (5, 32, False),
    "Q8_0": (8, 32, True),
    "Q2_K": (2, 16, False),
    "Q3_K": (3, 16, True),
    "Q4_K": (4, 32, False),
    "Q5_K": (5, 32, False),
    "Q6_K": (6, 16, True),
    "IQ4_NL": (8, 32, True),
    "IQ4_XS": (8, 32, True),
    "MXFP4": (5, 32, True),
}
DOWN = "model.layers.0.mlp.down_proj.weight"


def test_a_matrix_worked_by_hand() -> None:
    """Two rows in groups of two: (code - zero) * scale."""
    matrix = Grouped(
        codes=torch.tensor([[0, 15, 8, 3], [1, 2, 3, 4]], dtype=torch.uint8),
        scales=torch.tensor([[0.5, 2.0], [1.0, -1.0]]),
        zeros=torch.tensor([[8, 3], [0, 15]], dtype=torch.uint8),
        offsets=None,
        bits=4,
        group=2,
    )
    assert matrix.dequantize().tolist() == [[-4.0, 3.5, 10.0, 0.0], [1.0, 2.0, 12.0, 11.0]]
    assert not matrix.symmetric
    assert matrix.order() is None


def test_columns_in_another_order_worked_by_hand() -> None:
    """Columns 0 and 3 are group 1, columns 1 and 2 group 0; code * scale + offset."""
    matrix = Grouped(
        codes=torch.tensor([[1, 2, 3, 4]], dtype=torch.int8),
        scales=torch.tensor([[10.0, 100.0]]),
        zeros=None,
        offsets=torch.tensor([[0.5, 0.25]]),
        bits=4,
        group=2,
        column_groups=torch.tensor([1, 0, 0, 1], dtype=torch.int32),
    )
    assert matrix.dequantize().tolist() == [[100.25, 20.5, 30.5, 400.25]]
    order = matrix.order()
    assert order is not None and order.tolist() == [1, 2, 0, 3]


@pytest.mark.parametrize("name", GGML)
def test_ggml_blocks_as_codes_and_scales_have_gguf_numbers(name: str, tmp_path: Path) -> None:
    columns = 768
    raw = random_blocks(name, HIDDEN, columns)
    tensors = {
        name: np.zeros((columns, HIDDEN) if "gate" in name or "up" in name else (HIDDEN, columns), np.float32)
        if ".ffn_" in name and "norm" not in name
        else values
        for name, values in gguf_tensors().items()
        if name != "blk.0.ffn_down.weight"
    }
    path = write_gguf(
        tmp_path / "small.gguf",
        tensors,
        {"llama.feed_forward_length": (4, columns)},
        stored={"blk.0.ffn_down.weight": (name, raw)},
    )
    source = open_model(path)
    matrix = source.weights.grouped(DOWN)
    assert matrix is not None
    bits, group, symmetric = GGML[name]
    assert (matrix.bits, matrix.group, matrix.symmetric) == (bits, group, symmetric)
    assert matrix.codes.shape == (HIDDEN, columns) and matrix.scales.shape == (HIDDEN, columns // group)
    low = -(1 << (bits - 1)) if matrix.codes.dtype == torch.int8 else 0
    assert low <= int(matrix.codes.min()) and int(matrix.codes.max()) < low + (1 << bits)
    numbers = matrix.dequantize()
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(numbers.numpy(), expected)
    torch.testing.assert_close(numbers, source.weights.load(DOWN, torch.float32), rtol=0, atol=0)
    source.weights.close()


def test_rotary_rows_are_moved_as_on_loading(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf", quantize={"blk.0.attn_q.weight": "Q4_1"})
    source = open_model(path)
    name = "model.layers.0.self_attn.q_proj.weight"
    matrix = source.weights.grouped(name)
    assert matrix is not None and matrix.codes.shape[0] > HEAD_DIM
    torch.testing.assert_close(matrix.dequantize(), source.weights.load(name, torch.float32), rtol=0, atol=0)
    source.weights.close()


def test_plain_numbers_have_no_groups(tmp_path: Path) -> None:
    source = open_model(write_folder(tmp_path / "small"))
    assert source.weights.grouped(DOWN) is None
    with pytest.raises(ModelFileError, match=r"^the model has no tensor nothing\.weight$"):
        source.weights.grouped("nothing.weight")
    source.weights.close()
