"""Blocks of every format to codes and scales, and to numbers, with PyTorch operators.

Layouts are those of ggml's block structs (ggml-common.h, `block_q4_0` ... `block_mxfp4`). In the
functions below `b` is uint8 [rows, blocks, block_bytes]; `d` is the scale of a block, half precision in the
file. Numbers equal gguf's own in float32.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, NamedTuple

from tokenmill.models.formats import FORMATS
from tokenmill.models.grouped import numbers

if TYPE_CHECKING:
    import torch
    from torch import Tensor


class Parts(NamedTuple):
    """What blocks hold: numbers are codes * scales + offsets.

    Attributes:
        codes: uint8 or int8, [rows, blocks, groups of a block, group].
        scales: float32, [rows, blocks, groups of a block, 1].
        offsets: like `scales`; None where there are none.
    """

    codes: Tensor
    scales: Tensor
    offsets: Tensor | None = None


def dequantize(format_name: str, raw: Tensor, out: Tensor) -> None:
    """Fills `out` [rows, columns], any float type, from `raw` uint8 [rows, row bytes] (contiguous)."""
    plain = _plain_types().get(format_name)
    if plain is not None:
        out.copy_(raw.view(plain))
        return
    parts = split(format_name, raw)
    out.view(parts.codes.shape).copy_(numbers(parts.codes, parts.scales, offsets=parts.offsets))


def split(format_name: str, raw: Tensor) -> Parts:
    """Codes and scales of `raw`, uint8 [rows, row bytes] (contiguous), in a block format."""
    blocks = raw.view(raw.shape[0], -1, FORMATS[format_name].block_bytes)
    return _DECODERS[format_name](blocks)


def _plain_types() -> dict[str, torch.dtype]:
    import torch

    return {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def _half(b: Tensor, at: int) -> Tensor:
    """The half-precision number at byte `at` of each block, as float32 [..., 1]."""
    import torch

    return b[..., at : at + 2].view(torch.float16).float()


def _signed(b: Tensor) -> Tensor:
    import torch

    return b.view(torch.int8)


def _nibbles(b: Tensor) -> Tensor:
    """[..., n] bytes to [..., 2n]: all low halves, then all high halves."""
    import torch

    return torch.cat((b & 15, b >> 4), -1)


def _bits(b: Tensor) -> Tensor:
    """[..., n] bytes to [..., n, 8] bits, lowest first."""
    import torch

    return (b[..., None] >> torch.arange(8, dtype=torch.uint8)) & 1


def _pairs(b: Tensor) -> Tensor:
    """[..., n] bytes to [..., 4, n] numbers of two bits, lowest first."""
    import torch

    return (b[..., None, :] >> torch.tensor([0, 2, 4, 6], dtype=torch.uint8)[:, None]) & 3


def _whole(codes: Tensor, scales: Tensor, offsets: Tensor | None = None) -> Parts:
    """A block that is one group: codes [..., block], scales and offsets [..., 1]."""
    return Parts(codes[..., None, :], scales[..., None], None if offsets is None else offsets[..., None])


def _q4_0(b: Tensor) -> Parts:
    return _whole(_signed(_nibbles(b[..., 2:])) - 8, _half(b, 0))


def _q4_1(b: Tensor) -> Parts:
    return _whole(_nibbles(b[..., 4:]), _half(b, 0), _half(b, 2))


def _q5_0(b: Tensor) -> Parts:
    codes = _nibbles(b[..., 6:]) | (_bits(b[..., 2:6]).flatten(-2) << 4)
    return _whole(_signed(codes) - 16, _half(b, 0))


def _q5_1(b: Tensor) -> Parts:
    codes = _nibbles(b[..., 8:]) | (_bits(b[..., 4:8]).flatten(-2) << 4)
    return _whole(codes, _half(b, 0), _half(b, 2))


def _q8_0(b: Tensor) -> Parts:
    return _whole(_signed(b[..., 2:]), _half(b, 0))


def _k_scales(b: Tensor) -> tuple[Tensor, Tensor]:
    """Scales and minima of the 8 sub-blocks of a Q4_K or Q5_K block, float32 [..., 8, 1].

    Twelve bytes hold sixteen 6-bit numbers: the first four scales and minima in the low bits of bytes
    0-3 and 4-7, the last four split between nibbles of bytes 8-11 and the two spare bits above.
    """
    import torch

    first, second, third = b[..., 4:8], b[..., 8:12], b[..., 12:16]
    scales = torch.cat((first & 63, (third & 15) | ((first >> 6) << 4)), -1)
    minima = torch.cat((second & 63, (third >> 4) | ((second >> 6) << 4)), -1)
    return (scales * _half(b, 0))[..., None], (minima * _half(b, 2))[..., None]


def _k_codes(b: Tensor) -> Tensor:
    """The nibbles of a Q4_K or Q5_K block by sub-block, [..., 8, 32]: 32 bytes hold two sub-blocks."""
    whole = b.shape[:2]
    return _nibbles(b.reshape(*whole, 4, 32)).view(*whole, 8, 32)


def _q4_k(b: Tensor) -> Parts:
    scales, minima = _k_scales(b)
    return Parts(_k_codes(b[..., 16:]), scales, -minima)


def _q5_k(b: Tensor) -> Parts:
    scales, minima = _k_scales(b)
    return Parts(_k_codes(b[..., 48:]) | (_bits(b[..., 16:48]).transpose(-1, -2) << 4), scales, -minima)


def _q6_k(b: Tensor) -> Parts:
    """Two halves of 128: four runs of 32 numbers, low nibbles in 64 bytes, top two bits in 32."""
    whole = b.shape[:2]
    low = _nibbles(b[..., :128].reshape(*whole, 2, 64)).view(*whole, 2, 4, 32)
    high = _pairs(b[..., 128:192].reshape(*whole, 2, 32))
    codes = (_signed(low | (high << 4)) - 32).view(*whole, 16, 16)
    scales = _signed(b[..., 192:208]) * _half(b, 208)
    return Parts(codes, scales[..., None])


def _q2_k(b: Tensor) -> Parts:
    """Sixteen runs of 16 numbers; a byte holds a scale and a minimum. 32 bytes of codes hold 128 numbers."""
    whole = b.shape[:2]
    codes = _pairs(b[..., 16:80].reshape(*whole, 2, 32)).view(*whole, 16, 16)
    scales, minima = (b[..., :16] & 15) * _half(b, 80), (b[..., :16] >> 4) * _half(b, 82)
    return Parts(codes, scales[..., None], -minima[..., None])


def _q3_k(b: Tensor) -> Parts:
    """Codes as in Q2_K; a third bit, which is off where 4 is taken away, stands in the first 32 bytes.

    Twelve bytes hold sixteen 6-bit scales: low halves in the nibbles of the first eight, the upper two bits
    in the last four.
    """
    whole = b.shape[:2]
    low = _pairs(b[..., 32:96].reshape(*whole, 2, 32)).view(*whole, 16, 16)
    high = _bits(b[..., :32]).transpose(-1, -2).reshape(*whole, 16, 16)
    codes = _signed(low | (high << 2)) - 4
    scales = _nibbles(b[..., 96:104]) | (_pairs(b[..., 104:108]).flatten(-2) << 4)
    return Parts(codes, ((_signed(scales) - 32) * _half(b, 108))[..., None])


# Numbers a nibble stands for: ggml's non-linear levels, and twice the FP4 (e2m1) of the OCP MX specification.
_IQ4_LEVELS = (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113)
_FP4_DOUBLED = (0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12)


def _looked_up(b: Tensor, levels: tuple[int, ...]) -> Tensor:
    """[..., n] bytes to the [..., 2n] levels of their nibbles, all low halves first."""
    import torch

    return torch.tensor(levels, dtype=torch.int8)[_nibbles(b).int()]


def _iq4_nl(b: Tensor) -> Parts:
    return _whole(_looked_up(b[..., 2:], _IQ4_LEVELS), _half(b, 0))


def _iq4_xs(b: Tensor) -> Parts:
    """Eight runs of 32 numbers; low nibbles of their 6-bit scales in 4 bytes, the upper bits in 2."""
    import torch

    whole = b.shape[:2]
    low = torch.stack((b[..., 4:8] & 15, b[..., 4:8] >> 4), -1).flatten(-2)
    high = _pairs(b[..., 2:4]).transpose(-1, -2).flatten(-2)
    scales = (_signed(low | (high << 4)) - 32) * _half(b, 0)
    return Parts(_looked_up(b[..., 8:].reshape(*whole, 8, 16), _IQ4_LEVELS), scales[..., None])


def _mxfp4(b: Tensor) -> Parts:
    """The scale is a bare exponent, 2^(e - 127), halved here for the doubled levels."""
    import torch

    exponent = b[..., :1].int()
    # As bits of a float32: a normal number, or one of the two below them.
    bits = torch.where(exponent < 2, 0x200000 << exponent.clamp(max=1), (exponent - 1) << 23)
    return _whole(_looked_up(b[..., 1:], _FP4_DOUBLED), bits.view(torch.float32))


_DECODERS: Mapping[str, Callable[[Tensor], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
