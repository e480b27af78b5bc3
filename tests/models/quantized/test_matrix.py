"""What all schemes share: matrices are read in blocks, and some rows of one are a matrix too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from compressed_tensors.compressors.pack_quantized import pack_to_int32

from support.packers import Codes, awq, gptq, open_quantized, random_codes
from tokenmill.models.quantized import awq as awq_reader
from tokenmill.models.quantized import compressed as compressed_reader
from tokenmill.models.quantized import gptq as gptq_reader
from tokenmill.models.quantized.matrix import PackedMatrix
from tokenmill.models.stored_weights import StoredWeights

BLOCK = 2000  # of 48 x 256 = 12288 numbers
GROUP = {"num_bits": 4, "strategy": "group", "group_size": 32, "symmetric": False}
CONFIGS: dict[str, dict[str, Any]] = {
    "awq": {"quant_method": "awq", "bits": 4, "group_size": 32},
    "gptq": {"quant_method": "gptq", "bits": 4, "group_size": 32},
    "compressed-tensors": {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "config_groups": {"group_0": {"targets": ["Linear"], "weights": GROUP}},
    },
}


def compressed(name: str, matrix: Codes) -> dict[str, torch.Tensor]:
    def signed(codes: Any) -> torch.Tensor:
        return torch.from_numpy(codes - 8).to(torch.int8)

    return {
        f"{name}.weight_packed": pack_to_int32(signed(matrix.codes), 4),
        f"{name}.weight_zero_point": pack_to_int32(signed(matrix.zeros), 4, packed_dim=0),
        f"{name}.weight_scale": torch.from_numpy(matrix.scales),
        f"{name}.weight_shape": torch.tensor(matrix.codes.shape),
    }


@pytest.fixture(params=CONFIGS)
def opened(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[StoredWeights, Codes]:
    for reader in (awq_reader, gptq_reader, compressed_reader):
        monkeypatch.setattr(reader, "BLOCK_NUMBERS", BLOCK)
    packed = random_codes(48, 256, 32)
    tensors = {"awq": awq, "gptq": gptq, "compressed-tensors": compressed}[request.param]("m", packed)
    weights = open_quantized(tmp_path, tensors, CONFIGS[request.param])
    request.addfinalizer(weights.close)
    return weights, packed


def matrix_of(weights: StoredWeights) -> PackedMatrix:
    stored = weights._stored["m.weight"]
    assert isinstance(stored, PackedMatrix)
    return stored


def test_blocks_cover_the_matrix_once_and_none_is_larger_than_allowed(
    opened: tuple[StoredWeights, Codes],
) -> None:
    weights, _ = opened
    seen = torch.zeros(48, 256, dtype=torch.int64)
    blocks = 0
    for rows, columns, codes in matrix_of(weights).packing.codes(slice(0, 48)):
        assert codes.shape == seen[rows, columns].shape and codes.numel() <= BLOCK
        seen[rows, columns] += 1
        blocks += 1
    assert bool((seen == 1).all()) and blocks > 1


@pytest.mark.parametrize(("start", "count"), [(0, 48), (0, 16), (16, 32), (5, 11), (47, 1)])
def test_rows_are_a_matrix_of_their_own(start: int, count: int, opened: tuple[StoredWeights, Codes]) -> None:
    weights, packed = opened
    whole = matrix_of(weights)
    part = whole.rows("part.weight", start, count)
    assert (part.info.name, part.info.shape) == ("part.weight", (count, 256))
    assert part.info.nbytes == whole.info.nbytes * count // 48
    expected = packed.numbers()[start : start + count]
    out = torch.full((count, 256), torch.nan)
    part.fill(out)
    torch.testing.assert_close(out, expected, rtol=0, atol=0)
    torch.testing.assert_close(part.grouped().dequantize(), expected, rtol=0, atol=0)
    inner = part.rows("inner.weight", count - 1, 1).grouped()
    torch.testing.assert_close(inner.dequantize(), expected[-1:], rtol=0, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrower_result_is_the_float32_result_rounded_once(
    dtype: torch.dtype, opened: tuple[StoredWeights, Codes]
) -> None:
    weights, packed = opened
    found = weights.load("m.weight", dtype)
    torch.testing.assert_close(found, packed.numbers().to(dtype), rtol=0, atol=0)
