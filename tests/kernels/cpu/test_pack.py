"""What a stored matrix becomes in panels: its own numbers where a format holds them, near ones where none does."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.ggml_blocks import random_ggml
from support.packers import Codes, awq, gptq, open_quantized, random_codes
from support.packing import ROW_FORMATS, gated
from support.packing import pack as packed_by_hand
from tokenmill.kernels.cpu.pack import Source, pack, pack_named
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.models.grouped import Grouped
from tokenmill.models.tensor_info import TensorInfo
from tokenmill.planner.packed import PackedFormat
from tokenmill.planner.packing import INT4, INT8, Packing, packing_of

BF16, F32 = Packing(PackedFormat.BF16), Packing(PackedFormat.F32)
KEPT = {
    "Q4_0": PackedFormat.INT4,
    "Q4_1": PackedFormat.INT4_OFFSET,
    "Q4_K": PackedFormat.INT4_OFFSET,
    "Q5_0": PackedFormat.INT8,
    "Q5_1": PackedFormat.INT8_OFFSET,
    "Q5_K": PackedFormat.INT8_OFFSET,
    "Q8_0": PackedFormat.INT8,
    "IQ4_NL": PackedFormat.INT8,
    "IQ4_XS": PackedFormat.INT8,
    "MXFP4": PackedFormat.INT8,
}


def weight(rows: int, columns: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * 0.05


def decibels(reference: torch.Tensor, found: torch.Tensor) -> float:
    return 10 * math.log10(float(reference.square().sum() / (reference - found).square().sum()))


def same(packed: PackedMatrix, numbers: torch.Tensor) -> None:
    """To the last bit or, where an offset stands for a zero point, to the rounding of one float32 sum."""
    found = packed.dequantize()
    top = float(numbers.abs().max())
    torch.testing.assert_close(found, numbers, rtol=0, atol=top * 2**-22 if packed.shape.format.offset else 0)


def ggml_packing(name: str) -> Packing:
    return packing_of(TensorInfo("m.weight", (64, 512), name, 0), "auto")


@pytest.mark.parametrize("name", KEPT)
def test_ggml_blocks_keep_their_numbers(name: str) -> None:
    stored = random_ggml(name, 70, 512)
    packed = pack([stored], ggml_packing(name))
    assert packed.exact and packed.shape.format is KEPT[name]
    same(packed, stored.dequantize())


@pytest.mark.parametrize("name", ["Q2_K", "Q3_K", "Q6_K"])
def test_groups_of_sixteen_are_rounded_again_and_say_so(name: str) -> None:
    stored = random_ggml(name, 70, 512)
    packed = pack([stored], ggml_packing(name))
    assert not packed.exact and packed.shape.format is PackedFormat.INT8
    assert decibels(stored.dequantize(), packed.dequantize()) > 38


@settings(max_examples=40, deadline=None)
@given(
    rows=st.integers(1, 70),
    groups=st.integers(1, 4),
    group=st.sampled_from([32, 64, 128]),
    bits=st.sampled_from([2, 4, 5, 8]),
    signed=st.booleans(),
    zeros=st.booleans(),
    seed=st.integers(0, 9),
)
def test_codes_of_any_shape_keep_their_numbers(
    rows: int, groups: int, group: int, bits: int, signed: bool, zeros: bool, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    low, kind = (-(1 << (bits - 1)), torch.int8) if signed else (0, torch.uint8)

    def codes(*shape: int) -> torch.Tensor:
        return torch.randint(low, low + (1 << bits), shape, generator=generator).to(kind)

    scales = torch.rand(rows, groups, generator=generator).half().float()
    stored = Grouped(
        codes(rows, groups * group), scales, codes(rows, groups) if zeros else None, None, bits, group
    )
    offset = zeros or not signed
    narrow = PackedFormat.INT4_OFFSET if offset else PackedFormat.INT4
    wide = PackedFormat.INT8_OFFSET if offset else PackedFormat.INT8
    packed = pack([stored], Packing(narrow if bits <= 4 else wide, group // 32, 4 if offset else 2))
    assert packed.exact
    same(packed, stored.dequantize())


@pytest.mark.parametrize("columns", [20, 40, 576])
def test_one_scale_for_a_whole_row_of_any_length(columns: int) -> None:
    codes = torch.randint(-8, 8, (33, columns), dtype=torch.int8)
    stored = Grouped(codes, torch.rand(33, 1).half().float(), None, None, 4, columns)
    packed = pack([stored], Packing(PackedFormat.INT4, -(-columns // 32)))
    assert packed.exact and packed.shape.scales == 1
    same(packed, stored.dequantize())


@pytest.mark.parametrize("scheme", ["awq", "gptq", "gptq, centred", "gptq, 8 bits"])
def test_checkpoints_keep_their_numbers(scheme: str, tmp_path: Path) -> None:
    bits = 8 if "8" in scheme else 4
    matrix = random_codes(72, 256, 64, bits)
    if "centred" in scheme:
        matrix = replace(matrix, zeros=np.full_like(matrix.zeros, 8))
    tensors = awq("m", matrix) if scheme == "awq" else gptq("m", matrix, bits)
    config = {"quant_method": scheme[:4].strip(","), "bits": bits, "group_size": 64}
    weights = open_quantized(tmp_path, tensors, config)
    (packed,) = pack_named(weights, ["m.weight"], "auto")
    form = PackedFormat.INT4_OFFSET if bits == 4 else PackedFormat.INT8_OFFSET
    assert packed.shape.format is (PackedFormat.INT4 if "centred" in scheme else form)
    assert packed.exact and packed.shape.scale_every == 2
    same(packed, matrix.numbers())
    weights.close()


def test_columns_in_another_order_are_rounded_again_and_say_so(tmp_path: Path) -> None:
    matrix = random_codes(64, 256, 32, shuffled=True)
    config = {"quant_method": "gptq", "bits": 4, "group_size": 32, "desc_act": True}
    weights = open_quantized(tmp_path, gptq("m", matrix), config)
    (packed,) = pack_named(weights, ["m.weight"], "auto")
    assert not packed.exact and packed.shape.format is PackedFormat.INT8
    assert decibels(matrix.numbers(), packed.dequantize()) > 38
    weights.close()


@pytest.mark.parametrize("shape", [(1, 1), (40, 50), (70, 256)])
def test_int8_is_the_nearest_code_on_a_scale_that_float16_holds(shape: tuple[int, int]) -> None:
    numbers = weight(*shape)
    packed = pack([numbers], INT8)
    assert not packed.exact
    expected = packed_by_hand(numbers.numpy(), INT8.shape(*shape)).numbers
    # Where two codes are equally near either may be taken.
    largest = np.abs(numbers.numpy()).max()
    assert np.abs(packed.dequantize().numpy() - expected).max() <= largest / 127 * 1.01
    error = (packed.dequantize() - numbers).abs().max()
    assert float(error) <= float(largest) / 127 * 0.51


def test_int4_loses_less_than_plain_rounding() -> None:
    numbers = weight(64, 1024)
    plain = torch.from_numpy(packed_by_hand(numbers.numpy(), INT4.shape(64, 1024)).numbers)
    assert decibels(numbers, pack([numbers], INT4).dequantize()) > decibels(numbers, plain) + 0.5


def test_numbers_that_four_bits_hold_keep_their_places() -> None:
    numbers = torch.arange(16.0).repeat(40, 2) * 0.25 - 1.5
    torch.testing.assert_close(pack([numbers], INT4).dequantize(), numbers)


def test_equal_numbers_are_an_offset_or_the_largest_code() -> None:
    numbers = torch.full((33, 40), 0.5)
    assert torch.equal(pack([numbers], INT4).dequantize(), numbers)
    torch.testing.assert_close(pack([numbers], INT8).dequantize(), numbers, rtol=2**-11, atol=0)
    for packing in (INT4, INT8):
        assert not pack([torch.zeros(33, 40)], packing).dequantize().any()


@pytest.mark.parametrize("packing", [BF16, F32])
@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.bfloat16])
def test_numbers_without_codes(packing: Packing, kind: torch.dtype) -> None:
    numbers = weight(35, 50).to(kind)
    packed = pack([numbers], packing)
    expected = numbers.float() if packing is F32 else numbers.bfloat16().float()
    assert torch.equal(packed.dequantize(), expected)
    assert packed.exact == (packing is F32 or kind is torch.bfloat16)


@pytest.mark.parametrize("packing", [INT8, INT4, BF16, F32, Packing(PackedFormat.INT4_OFFSET)])
@pytest.mark.parametrize("counts", [(48, 16, 16), (5, 1, 40), (32, 64), (7,)])
def test_rows_of_several_matrices_follow_one_another(packing: Packing, counts: tuple[int, ...]) -> None:
    parts = [weight(count, 70, seed) for seed, count in enumerate(counts)]
    together = pack(parts, packing)
    assert together.shape.rows == sum(counts)
    assert torch.equal(
        together.dequantize(), torch.cat([pack([part], packing).dequantize() for part in parts])
    )


@pytest.mark.parametrize("inner", [16, 40, 96, 1])
@pytest.mark.parametrize("packing", [INT8, INT4, BF16, F32])
def test_gate_and_up_alternate(packing: Packing, inner: int) -> None:
    gate, up = weight(inner, 70, 1), weight(inner, 70, 2)
    both = pack([gate, up], packing, gated=True)
    apart = [pack([part], packing).dequantize().numpy() for part in (gate, up)]
    np.testing.assert_array_equal(both.dequantize().numpy(), gated(apart[0], apart[1]))
    for half, alone in zip(both.halves(), apart, strict=True):
        np.testing.assert_array_equal(half[:inner].numpy(), alone)


def test_a_large_matrix_is_packed_in_blocks_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    stored = random_ggml("Q4_1", 200, 256)
    whole = [pack([stored, stored], ggml_packing("Q4_1"), gated=both) for both in (False, True)]
    monkeypatch.setattr("tokenmill.kernels.cpu.pack._BLOCK_NUMBERS", 1)
    small = [pack([stored, stored], ggml_packing("Q4_1"), gated=both) for both in (False, True)]
    for one, other in zip(whole, small, strict=True):
        assert torch.equal(one.data, other.data)


@pytest.mark.parametrize("form", ROW_FORMATS)
def test_panels_begin_where_the_kernels_may_load_them(form: PackedFormat) -> None:
    packing = Packing(form)
    source: Source = weight(70, 70)
    if form in (PackedFormat.INT4, PackedFormat.INT8_OFFSET):
        source = random_ggml("Q4_0" if form is PackedFormat.INT4 else "Q5_1", 70, 96)
    data = pack([source], packing).data
    assert data.data_ptr() % 64 == 0 and data.shape[1] % 64 == 0 and data.is_contiguous()


def test_a_number_that_is_none_stays_none() -> None:
    for packing in (INT8, INT4, BF16):
        numbers = weight(32, 64)
        numbers[3, 5] = torch.nan
        assert pack([numbers], packing).dequantize()[3].isnan().any()


def test_matrices_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(ValueError, match="cannot be packed as one"):
        pack([weight(4, 32), weight(4, 64)], INT8)
    with pytest.raises(ValueError, match="as one gated one"):
        pack([weight(4, 32), weight(5, 32)], INT8, gated=True)


def test_codes_of_a_cut_matrix(tmp_path: Path) -> None:
    """Formats are decided for the whole of a fused matrix; a part whose own zero points are centred still fits."""
    matrix = random_codes(64, 64, 32)
    zeros = matrix.zeros.copy()
    zeros[:32] = 8
    matrix = Codes(matrix.codes, zeros, matrix.scales, matrix.groups)
    weights = open_quantized(tmp_path, awq("m", matrix), {"quant_method": "awq", "bits": 4, "group_size": 32})
    part = weights._stored["m.weight"].rows("part", 0, 32)
    grouped = part.grouped()
    assert grouped is not None and grouped.symmetric
    packed = pack([grouped], packing_of(part.info, "auto"))
    assert packed.exact and packed.shape.format is PackedFormat.INT4_OFFSET
    same(packed, matrix.numbers()[:32])
    weights.close()
