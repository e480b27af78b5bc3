"""GPTQ checkpoints of both versions: the numbers of the layout, with any order of columns."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.packers import Codes, gptq, open_quantized, random_codes, words
from tokenmill.core.errors import ModelFileError
from tokenmill.models.quantized import gptq as reader

CONFIG: dict[str, Any] = {
    "quant_method": "gptq",
    "bits": 4,
    "group_size": 32,
    "desc_act": False,
    "sym": False,
}
FORMATS = {1: "gptq", 2: "gptq_v2"}


def config(**changes: Any) -> dict[str, Any]:
    return {**CONFIG, **changes}


@pytest.mark.parametrize("version", [1, 2])
def test_an_eight_by_eight_matrix_worked_by_hand(version: int, tmp_path: Path) -> None:
    """The code of row r and column c is r + c; columns 0, 2, 4, 6 are group 0, the others group 1.

    Row 0, with codes 0 to 7, is the word 76543210. All zero points of group 0 are 3, those of group 1 are r;
    version 1 stores 33333333 - 11111111 and 76543210 - 11111111, where row 0 borrows from row 1. The scale of
    row r is r + 1 in group 0, and 1/2 in group 1.
    """
    rows = [0x76543210, 0x87654321, 0x98765432, 0xA9876543, 0xBA987654, 0xCBA98765, 0xDCBA9876, 0xEDCBA987]
    zeros = {1: [[0x22222222], [0x654320FF]], 2: [[0x33333333], [0x76543210]]}
    tensors = {
        "m.qweight": words(np.array([rows])),
        "m.qzeros": words(np.array(zeros[version])),
        "m.scales": torch.tensor([[1, 2, 3, 4, 5, 6, 7, 8], [0.5] * 8], dtype=torch.float16),
        "m.g_idx": torch.tensor([0, 1] * 4, dtype=torch.int32),
    }
    weights = open_quantized(
        tmp_path, tensors, config(group_size=4, desc_act=True, checkpoint_format=FORMATS[version])
    )
    expected = [
        [-3.0, 0.5, -1.0, 1.5, 1.0, 2.5, 3.0, 3.5],
        [-4.0, 0.5, 0.0, 1.5, 4.0, 2.5, 8.0, 3.5],
        [-3.0, 0.5, 3.0, 1.5, 9.0, 2.5, 15.0, 3.5],
        [0.0, 0.5, 8.0, 1.5, 16.0, 2.5, 24.0, 3.5],
        [5.0, 0.5, 15.0, 1.5, 25.0, 2.5, 35.0, 3.5],
        [12.0, 0.5, 24.0, 1.5, 36.0, 2.5, 48.0, 3.5],
        [21.0, 0.5, 35.0, 1.5, 49.0, 2.5, 63.0, 3.5],
        [32.0, 0.5, 48.0, 1.5, 64.0, 2.5, 80.0, 3.5],
    ]
    assert weights.load("m.weight", torch.float32).tolist() == expected
    weights.close()


@pytest.mark.parametrize("version", [1, 2])
@pytest.mark.parametrize("shuffled", [False, True], ids=["in order", "activation order"])
@pytest.mark.parametrize(("bits", "group"), [(4, 32), (4, 64), (4, 128), (4, -1), (8, 32), (8, -1), (2, 32)])
def test_numbers_and_codes_are_those_that_were_packed(
    bits: int, group: int, shuffled: bool, version: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reader, "BLOCK_NUMBERS", 1000)
    packed = random_codes(48, 384, group, bits, shuffled=shuffled)
    tensors = gptq("m", packed, bits, version)
    weights = open_quantized(
        tmp_path,
        tensors,
        config(bits=bits, group_size=group, desc_act=shuffled, checkpoint_format=FORMATS[version]),
    )
    info = weights.tensors["m.weight"]
    assert (info.shape, info.format) == ((48, 384), f"GPTQ{bits}")
    assert info.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    torch.testing.assert_close(weights.load("m.weight", torch.float32), packed.numbers(), rtol=0, atol=0)
    grouped = weights.grouped("m.weight")
    assert grouped is not None and grouped.zeros is not None
    np.testing.assert_array_equal(grouped.codes.numpy(), packed.codes)
    np.testing.assert_array_equal(grouped.zeros.numpy(), packed.zeros)
    torch.testing.assert_close(grouped.dequantize(), packed.numbers(), rtol=0, atol=0)
    order = grouped.order()
    if group == -1 or not shuffled:
        assert order is None
    else:
        assert order is not None
        assert packed.groups[order.numpy()].tolist() == sorted(packed.groups.tolist())
    weights.close()


@pytest.mark.parametrize("bits", [4, 8])
def test_zero_points_that_all_are_the_middle_become_signed_codes(bits: int, tmp_path: Path) -> None:
    packed = random_codes(16, 64, 32, bits)
    middle = 1 << (bits - 1)
    centred = Codes(packed.codes, np.full_like(packed.zeros, middle), packed.scales, packed.groups)
    weights = open_quantized(tmp_path, gptq("m", centred, bits), config(bits=bits, sym=True))
    grouped = weights.grouped("m.weight")
    assert grouped is not None and grouped.symmetric
    np.testing.assert_array_equal(grouped.codes.numpy(), packed.codes - middle)
    torch.testing.assert_close(grouped.dequantize(), centred.numbers(), rtol=0, atol=0)
    weights.close()


@pytest.mark.parametrize("version", [None, "gptq"], ids=["by default", "by name"])
def test_zero_points_are_stored_less_one_unless_the_file_says_otherwise(
    version: str | None, tmp_path: Path
) -> None:
    packed = random_codes(16, 64, 32)
    changes = {} if version is None else {"checkpoint_format": version}
    weights = open_quantized(tmp_path, gptq("m", packed, version=1), config(**changes))
    torch.testing.assert_close(weights.load("m.weight", torch.float32), packed.numbers(), rtol=0, atol=0)
    weights.close()


@pytest.mark.parametrize("member", ["absent", "zeros"])
def test_groups_are_in_order_where_nothing_else_is_said(member: str, tmp_path: Path) -> None:
    packed = random_codes(16, 64, 32)
    tensors = gptq("m", packed)
    tensors["m.g_idx"] = torch.zeros(64, dtype=torch.int32)
    if member == "absent":
        del tensors["m.g_idx"]
    weights = open_quantized(tmp_path, tensors, CONFIG)
    torch.testing.assert_close(weights.load("m.weight", torch.float32), packed.numbers(), rtol=0, atol=0)
    weights.close()


def groups(values: list[int]) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


BAD: dict[str, tuple[dict[str, torch.Tensor | None], dict[str, Any], str]] = {
    "a group below 0": (
        {"g_idx": groups([-1] * 32 + [0] * 32)},
        {},
        r"tensor m\.g_idx must name each group from 0 to 1 32 times; it holds -1 to 0",
    ),
    "a group too high": ({"g_idx": groups([0] * 32 + [2] * 32)}, {}, r"it holds 0 to 2"),
    "a group without bounds": ({"g_idx": groups([0] * 63 + [2**31 - 1])}, {}, r"it holds 0 to 2147483647"),
    "uneven groups": ({"g_idx": groups([0] * 33 + [1] * 31)}, {}, r"one of them 33 times"),
    "groups of other columns": ({"g_idx": groups([0] * 32)}, {}, r"tensor m\.g_idx has shape \[32\]"),
    "groups of another type": ({"g_idx": torch.zeros(64)}, {}, r"tensor m\.g_idx is F32; it must be I32"),
    "a zero for every column though they have an order": (
        {"g_idx": groups([0] * 64)},
        {"desc_act": True},
        r"tensor m\.g_idx must name each group from 0 to 1 32 times; it holds 0 to 0, one of them 64 times",
    ),
    "no order though columns have one": (
        {"g_idx": None},
        {"desc_act": True},
        r"tensor m\.g_idx is missing; desc_act is true",
    ),
    "rows that fill no words": (
        {"qweight": torch.zeros(8, 15, dtype=torch.int32)},
        {},
        r"tensor m\.qweight has 15 columns; they must be a multiple of 8",
    ),
    "other bits than the codes": ({}, {"bits": 8}, r"for GPTQ8 of \[16, 32\] in groups of 32"),
    "no zero points": ({"qzeros": None}, {}, r"tensor m\.qzeros is missing; m is quantized"),
    "an order without codes": (
        {"qweight": None, "qzeros": None, "scales": None},
        {},
        r"tensor m\.qweight is missing; m is quantized",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_tensors_that_do_not_fit_are_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, settings, message = BAD[name]
    tensors = gptq("m", random_codes(16, 64, 32))
    for part, tensor in changes.items():
        if tensor is None:
            del tensors[f"m.{part}"]
        else:
            tensors[f"m.{part}"] = tensor
    with pytest.raises(ModelFileError, match=message):
        open_quantized(tmp_path, tensors, config(**settings))
