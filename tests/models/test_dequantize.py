"""Values of every block format against the gguf package, bit for bit in float32."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
import torch

from tokenmill.models.dequantize import dequantize
from tokenmill.models.formats import FORMATS, nbytes

ROWS, COLUMNS = 24, 768
# Those the gguf package writes; it reads all.
QUANTIZABLE = [name for name in FORMATS if not name.endswith("_K") and not name.startswith("IQ")]
# Byte offsets of the half-precision scales in a block; MXFP4 has a bare exponent, any byte.
SCALES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
}


def decoded(name: str, raw: np.ndarray, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    out = torch.full((ROWS, COLUMNS), torch.nan, dtype=dtype)
    dequantize(name, torch.from_numpy(raw.copy()), out)
    return out


@pytest.mark.parametrize("name", QUANTIZABLE)
def test_quantized_numbers_come_back_as_gguf_gives_them(name: str) -> None:
    values = np.random.default_rng(1).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[name]
    raw = gguf.quants.quantize(values, kind).view(np.uint8)
    assert raw.nbytes == nbytes(name, values.shape)
    expected = gguf.quants.dequantize(raw, kind)
    np.testing.assert_array_equal(decoded(name, raw).numpy(), expected)
    assert np.abs(expected - values).max() < 1  # the oracle itself is near what was stored


@pytest.mark.filterwarnings("ignore:overflow")  # the largest exponent of MXFP4 is beyond float32
@pytest.mark.parametrize("name", SCALES)
def test_any_bits_of_a_block_come_out_as_gguf_gives_them(name: str) -> None:
    random = np.random.default_rng(2)
    layout = FORMATS[name]
    raw = random.integers(0, 256, (ROWS, COLUMNS // layout.block, layout.block_bytes), dtype=np.uint8)
    for at in SCALES[name]:
        scales = random.standard_normal((*raw.shape[:2], 1)).astype(np.float16)
        raw[..., at : at + 2] = scales.view(np.uint8)
    raw = raw.reshape(ROWS, -1)
    expected = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
    np.testing.assert_array_equal(decoded(name, raw).numpy(), expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_narrower_result_is_the_float32_result_rounded_once(dtype: torch.dtype) -> None:
    values = np.random.default_rng(3).standard_normal((ROWS, COLUMNS)).astype(np.float32)
    raw = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q4_1)
    torch.testing.assert_close(decoded("Q4_1", raw, dtype), decoded("Q4_1", raw).to(dtype), rtol=0, atol=0)
