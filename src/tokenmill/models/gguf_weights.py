"""GGUF tensors under their Hugging Face names.

llama.cpp stores the rows of q and k so that the rotary components of a pair are neighbours. The rows are
put back into halves on loading; nothing else differs from the Hugging Face checkpoint.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping

from tokenmill.core.errors import ModelFileError
from tokenmill.models.gguf import GgufHeader
from tokenmill.models.spec import ModelSpec
from tokenmill.models.stored_weights import StoredTensor
from tokenmill.models.weights import TensorInfo

ROPE_FACTORS = "rope_freqs.weight"
_MAX_ROPE_FACTORS = 1 << 16

_WHOLE: Mapping[str, str] = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_IN_LAYER: Mapping[str, str] = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
_LAYER_NAME = re.compile(r"blk\.(0|[1-9][0-9]{0,5})\.([a-z_]+)\.(weight|bias)", re.ASCII)


def canonical_name(name: str) -> str | None:
    """The Hugging Face name of a GGUF tensor of the Llama family; None for any other tensor."""
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return _WHOLE.get(name)
    part = _IN_LAYER.get(match[2])
    return f"model.layers.{match[1]}.{part}.{match[3]}" if part else None


def stored_tensors(header: GgufHeader, spec: ModelSpec) -> dict[str, StoredTensor]:
    """The tensors of a header that have a canonical name, by that name."""
    stored: dict[str, StoredTensor] = {}
    for tensor in header.tensors.values():
        name = canonical_name(tensor.name)
        if name is None:
            continue
        info = TensorInfo(name, tensor.shape, tensor.format, tensor.nbytes)
        rotary = ".q_proj." in name or ".k_proj." in name
        stored[name] = StoredTensor(
            info, tensor.file, tensor.offset, spec.layers[0].head_dim if rotary else 0
        )
    return stored


def read_rope_factors(header: GgufHeader) -> tuple[float, ...]:
    """Content of `rope_freqs.weight`, the divisors of the rotary frequencies; empty where there is none."""
    tensor = header.tensors.get(ROPE_FACTORS)
    if tensor is None:
        return ()
    if tensor.format != "F32" or len(tensor.shape) != 1 or tensor.shape[0] > _MAX_ROPE_FACTORS:
        raise ModelFileError(
            f"{tensor.file.name}: {ROPE_FACTORS} is {tensor.format} {list(tensor.shape)}; "
            "it must be a vector in F32"
        )
    raw = bytearray(tensor.nbytes)
    tensor.file.read_into(memoryview(raw), tensor.offset)
    return struct.unpack(f"<{tensor.shape[0]}f", raw)
