"""AWQ checkpoints of version GEMM: the numbers of the layout, and a refusal of every tensor that does not fit."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.packers import Codes, awq, open_quantized, random_codes, words
from tokenmill.core.errors import ModelFileError
from tokenmill.models.quantized import awq as reader

CONFIG: dict[str, Any] = {
    "quant_method": "awq",
    "bits": 4,
    "group_size": 32,
    "zero_point": True,
    "version": "gemm",
}


def config(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, **changes}


def test_an_eight_by_eight_matrix_worked_by_hand(tmp_path: Path) -> None:
    """The code of row r and column c is r + c, in two groups of four columns.

    Rows 0 to 7 lie at nibbles 0, 4, 1, 5, 2, 6, 3, 7: column 0, with codes 0 to 7, is 75316420. In the first
    group all zero points are 3 and the scale of row r is r + 1; in the second the zero point of row r is r and
    all scales are 1/2.
    """
    columns = [
        0x75316420,
        0x86427531,
        0x97538642,
        0xA8649753,
        0xB975A864,
        0xCA86B975,
        0xDB97CA86,
        0xECA8DB97,
    ]
    tensors = {
        "m.qweight": words(np.array(columns)[:, None]),
        "m.qzeros": words(np.array([[0x33333333], [0x75316420]])),
        "m.scales": torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [0.5] * 8], dtype=torch.float16),
    }
    weights = open_quantized(tmp_path, tensors, config(group_size=4))
    expected = [
        [-3.0, -2.0, -1.0, 0.0, 2.0, 2.5, 3.0, 3.5],
        [-4.0, -2.0, 0.0, 2.0, 2.0, 2.5, 3.0, 3.5],
        [-3.0, 0.0, 3.0, 6.0, 2.0, 2.5, 3.0, 3.5],
        [0.0, 4.0, 8.0, 12.0, 2.0, 2.5, 3.0, 3.5],
        [5.0, 10.0, 15.0, 20.0, 2.0, 2.5, 3.0, 3.5],
        [12.0, 18.0, 24.0, 30.0, 2.0, 2.5, 3.0, 3.5],
        [21.0, 28.0, 35.0, 42.0, 2.0, 2.5, 3.0, 3.5],
        [32.0, 40.0, 48.0, 56.0, 2.0, 2.5, 3.0, 3.5],
    ]
    assert weights.load("m.weight", torch.float32).tolist() == expected
    weights.close()


@pytest.mark.parametrize("group", [32, 64, 128, -1])
@pytest.mark.parametrize("shape", [(8, 128), (64, 384), (200, 128)])
def test_numbers_and_codes_are_those_that_were_packed(
    shape: tuple[int, int], group: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK_NUMBERS", 1000)  # several blocks, the last one short
    packed = random_codes(*shape, group)
    tensors = awq("m", packed)
    weights = open_quantized(tmp_path, tensors, config(group_size=group))
    info = weights.tensors["m.weight"]
    assert (info.shape, info.format) == (shape, "AWQ4")
    assert info.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    torch.testing.assert_close(weights.load("m.weight", torch.float32), packed.numbers(), rtol=0, atol=0)
    for dtype in (torch.bfloat16, torch.float16):
        rounded = packed.numbers().to(dtype)
        torch.testing.assert_close(weights.load("m.weight", dtype), rounded, rtol=0, atol=0)
    grouped = weights.grouped("m.weight")
    assert grouped is not None and grouped.zeros is not None
    assert (grouped.bits, grouped.group) == (4, shape[1] if group == -1 else group)
    np.testing.assert_array_equal(grouped.codes.numpy(), packed.codes)
    np.testing.assert_array_equal(grouped.zeros.numpy(), packed.zeros)
    torch.testing.assert_close(grouped.dequantize(), packed.numbers(), rtol=0, atol=0)
    weights.close()


@pytest.mark.parametrize("stored", [True, False])
def test_without_zero_points_codes_are_signed_around_the_middle(stored: bool, tmp_path: Path) -> None:
    packed = random_codes(16, 64, 32)
    centred = Codes(packed.codes, np.full_like(packed.zeros, 8), packed.scales, packed.groups)
    tensors = awq("m", centred)
    if not stored:
        del tensors["m.qzeros"]
    weights = open_quantized(tmp_path, tensors, config(zero_point=False))
    torch.testing.assert_close(weights.load("m.weight", torch.float32), centred.numbers(), rtol=0, atol=0)
    grouped = weights.grouped("m.weight")
    assert grouped is not None and grouped.symmetric and grouped.codes.dtype == torch.int8
    np.testing.assert_array_equal(grouped.codes.numpy(), packed.codes - 8)
    torch.testing.assert_close(grouped.dequantize(), centred.numbers(), rtol=0, atol=0)
    weights.close()


BAD: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "no scales": ({"scales": None}, r"tensor m\.scales is missing; m is quantized"),
    "no codes": ({"qweight": None}, r"tensor m\.qweight is missing; m is quantized"),
    "no zero points": ({"qzeros": None}, r"tensor m\.qzeros is missing"),
    "codes of another type": ({"qweight": torch.zeros(64, 2)}, r"tensor m\.qweight is F32; it must be I32"),
    "zero points of another type": (
        {"qzeros": torch.zeros(2, 2, dtype=torch.int64)},
        r"tensor m\.qzeros is I64; it must be I32",
    ),
    "scales of another type": (
        {"scales": torch.zeros(2, 16, dtype=torch.float64)},
        r"tensor m\.scales is F64; scales must be F16, BF16, F32",
    ),
    "a vector of codes": (
        {"qweight": torch.zeros(128, dtype=torch.int32)},
        r"tensor m\.qweight has shape \[128\]; it must have 2 dimensions, none 0",
    ),
    "no rows": (
        {"qweight": torch.zeros(64, 0, dtype=torch.int32)},
        r"tensor m\.qweight has shape \[64, 0\]; it must have 2 dimensions, none 0",
    ),
    "groups that do not fill a row": (
        {"qweight": torch.zeros(63, 2, dtype=torch.int32)},
        r"m: rows of 63 numbers are no whole number of groups of 32",
    ),
    "too few groups": (
        {"scales": torch.zeros(1, 16, dtype=torch.float16)},
        r"tensor m\.scales has shape \[1, 16\]; for AWQ4 of \[16, 64\] in groups of 32 it must be \[2, 16\]",
    ),
    "zero points of other groups": (
        {"qzeros": torch.zeros(4, 2, dtype=torch.int32)},
        r"tensor m\.qzeros has shape \[4, 2\]",
    ),
    "both kinds": ({"weight": torch.zeros(16, 64)}, r"tensor m\.weight is there both plain and quantized"),
}


@pytest.mark.parametrize("name", BAD)
def test_tensors_that_do_not_fit_are_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = BAD[name]
    tensors = awq("m", random_codes(16, 64, 32))
    for part, tensor in changes.items():
        if tensor is None:
            del tensors[f"m.{part}"]
        else:
            tensors[f"m.{part}"] = tensor
    with pytest.raises(ModelFileError, match=message):
        open_quantized(tmp_path, tensors, CONFIG)


@pytest.mark.parametrize("value", [float("inf"), float("nan")])
def test_scales_that_are_no_numbers_are_refused_on_loading(value: float, tmp_path: Path) -> None:
    tensors = awq("m", random_codes(16, 64, 32))
    tensors["m.scales"][1, 5] = value
    weights = open_quantized(tmp_path, tensors, CONFIG)
    message = r"^model\.safetensors: tensor m\.scales holds a scale that is not a finite number$"
    with pytest.raises(ModelFileError, match=message):
        weights.load("m.weight", torch.float32)
    with pytest.raises(ModelFileError, match=message):
        weights.grouped("m.weight")
    weights.close()
