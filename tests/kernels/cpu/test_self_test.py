"""An intact matrix passes, whatever its format; a damaged scale does not."""

from __future__ import annotations

import math

import pytest
import torch

from support.ggml_blocks import random_ggml
from tokenmill.kernels.cpu.pack import pack
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.kernels.cpu.self_test import check, passes
from tokenmill.planner.packed import PackedFormat
from tokenmill.planner.packing import INT4, INT8, Packing

BF16 = Packing(PackedFormat.BF16)


def normal(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed))


def damage(packed: PackedMatrix, value: float) -> None:
    """Another first scale of row 3: every later one stays."""
    scales = packed.data[:, packed.shape.code_bytes :].view(torch.float16)
    scales[0, 3] *= value


@pytest.mark.parametrize(("packing", "least"), [(INT8, 40), (INT4, 20), (BF16, 50)])
@pytest.mark.parametrize("gated", [False, True])
def test_intact_matrices_pass(packing: Packing, least: float, gated: bool) -> None:
    weights = [normal(200, 300, 1), normal(200, 300, 2)]
    packed = pack(weights, packing, gated=gated)
    found = check(packed, torch.cat(weights), normal(64, 300))
    assert found.whole > least and found.worst_row > least - 5
    assert passes(packed, found)


def test_decibels_are_those_of_the_products() -> None:
    weight, x = normal(70, 64, 1), normal(8, 64)
    packed = pack([weight], INT8)
    reference, y = (x @ weight.T).double(), (x @ packed.dequantize().T).double()
    signal, noise = reference.square().sum(dim=0), (y - reference).square().sum(dim=0)
    found = check(packed, weight, x)
    assert found.whole == pytest.approx(10 * math.log10(signal.sum() / noise.sum()), abs=1e-3)
    assert found.worst_row == pytest.approx(10 * math.log10((signal / noise).min()), abs=1e-3)


def test_stored_codes_have_no_noise() -> None:
    stored = random_ggml("Q4_0", 64, 256)
    packed = pack([stored], Packing(PackedFormat.INT4))
    found = check(packed, stored.dequantize(), normal(16, 256))
    assert found.whole == found.worst_row == math.inf
    assert passes(packed, found)


@pytest.mark.parametrize("value", [0.0, 2.0, -1.0, 1e4, math.inf, math.nan])
def test_a_damaged_scale_is_refused(value: float) -> None:
    weight = normal(256, 576, 1)
    packed = pack([weight], INT8)
    damage(packed, value)
    found = check(packed, weight, normal(64, 576))
    assert not passes(packed, found)


def test_a_damaged_scale_of_stored_codes_is_refused() -> None:
    stored = random_ggml("Q4_0", 64, 256)
    packed = pack([stored], Packing(PackedFormat.INT4))
    damage(packed, 1.5)
    assert not passes(packed, check(packed, stored.dequantize(), normal(16, 256)))


def test_rows_too_small_for_a_scale_do_no_harm() -> None:
    weight = normal(128, 256, 1)
    weight[5] *= 1e-22
    weight[7] = 0
    for packing in (INT8, INT4):
        packed = pack([weight], packing)
        assert passes(packed, check(packed, weight, normal(16, 256)))


@pytest.mark.parametrize("gated", [False, True])
def test_rows_in_another_order_are_refused(gated: bool) -> None:
    weights = [normal(48, 64, 1), normal(48, 64, 2)]
    packed = pack(weights, INT8, gated=gated)
    assert not passes(packed, check(packed, torch.cat(weights[::-1]), normal(16, 64)))


def test_large_matrices_are_read_back_in_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    weights = [normal(100, 64, 1), normal(100, 64, 2)]
    for gated in (False, True):
        packed = pack(weights, INT4, gated=gated)
        whole = check(packed, torch.cat(weights), normal(16, 64))
        with monkeypatch.context() as patch:
            patch.setattr("tokenmill.kernels.cpu.self_test._BLOCK_NUMBERS", 1)
            blocks = check(packed, torch.cat(weights), normal(16, 64))
        assert blocks.whole == pytest.approx(whole.whole) and blocks.worst_row == pytest.approx(
            whole.worst_row
        )


def test_another_shape_is_refused() -> None:
    packed = pack([normal(48, 64)], INT8)
    with pytest.raises(ValueError, match=r"a weight of \[47, 64\] is not what a packed matrix of \[48, 64\]"):
        check(packed, normal(47, 64), normal(4, 64))
