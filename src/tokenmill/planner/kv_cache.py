"""How many bytes the native KV cache takes: see kernels/cpu/native/kv.h."""

from __future__ import annotations

from typing import Literal

KvFormatName = Literal["int8", "bfloat16"]

_DIM = 16


def kv_token_bytes(form: KvFormatName, head_dim: int) -> int:
    """Of one token and KV head: key and value, their dimension filled up to a multiple of 16, and of int8 two
    scales in float32."""
    padded = -(-head_dim // _DIM) * _DIM
    return 2 * padded + 8 if form == "int8" else 4 * padded


def kv_head_bytes(form: KvFormatName, head_dim: int, block_size: int) -> int:
    """Of one KV head's part of a block; a multiple of 64."""
    return block_size * kv_token_bytes(form, head_dim)
