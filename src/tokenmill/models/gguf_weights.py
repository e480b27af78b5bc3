"""GGUF tensors under their canonical names: renamed, cut out of fused and stacked ones, rows in order."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace

from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import Family
from tokenmill.models.gguf import GgufHeader, GgufTensor
from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.models.stored_weights import StoredTensor
from tokenmill.models.tensor_info import TensorInfo

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
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
# Where attention and MLP are normed once more, the norm before the MLP is no longer the one after attention.
_WITH_POST_NORMS: Mapping[str, str] = {
    **_IN_LAYER,
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
_MLP = ("ffn_gate", "ffn_up", "ffn_down")
_NUMBER = "0|[1-9][0-9]{0,5}"
_LAYER_NAME = re.compile(rf"blk\.({_NUMBER})\.([a-z_]+)(?:\.({_NUMBER}))?\.(weight|bias)", re.ASCII)


def canonical_name(name: str, *, post_norms: bool = False) -> str | None:
    """The canonical name of a GGUF tensor; None for any other, stacked and fused ones among them.

    Args:
        post_norms: as in `LayerSpec`.
    """
    match = _LAYER_NAME.fullmatch(name)
    if match is None:
        return _WHOLE.get(name)
    layer, stored, expert, kind = match.groups()
    part = (_WITH_POST_NORMS if post_norms else _IN_LAYER).get(stored)
    if expert is not None:  # a tensor for each expert, as older files have them
        part = part.replace("mlp.", f"mlp.experts.{expert}.") if part and stored in _MLP else None
    return f"model.layers.{layer}.{part}.{kind}" if part else None


def stored_tensors(header: GgufHeader, family: Family, spec: ModelSpec) -> dict[str, StoredTensor]:
    """The tensors of a header that have canonical names, by those names.

    Raises:
        ModelFileError: a fused or stacked tensor has not the shape of its parts together.
    """
    stored: dict[str, StoredTensor] = {}
    for tensor in header.tensors.values():
        joined = _joined(tensor, spec)
        if joined is not None:
            stored |= _cut(tensor, joined)
            continue
        name = canonical_name(tensor.name, post_norms=spec.layers[0].post_norms)
        if name is not None:
            stored[name] = _stored(tensor, name)
    if family.gguf_pairs:
        _pair(stored, spec.layers[0].head_dim)
    return stored


@dataclass(frozen=True)
class _Joined:
    """What a tensor holds that is several: its shape, and in order the name and rows of each part."""

    shape: tuple[int, ...]
    parts: tuple[tuple[str, int], ...]


def _joined(tensor: GgufTensor, spec: ModelSpec) -> _Joined | None:
    match = _LAYER_NAME.fullmatch(tensor.name)
    if match is None or match[3] is not None or int(match[1]) >= len(spec.layers):
        return None
    layer, stored, kind = spec.layers[int(match[1])], match[2], match[4]
    at = f"model.layers.{match[1]}."
    inner = (spec.hidden,) if kind == "weight" else ()
    if stored == "attn_qkv":
        heads = (("q_proj", layer.heads), ("k_proj", layer.kv_heads), ("v_proj", layer.kv_heads))
        parts = tuple((f"{at}self_attn.{name}.{kind}", n * layer.head_dim) for name, n in heads)
        return _Joined((sum(rows for _, rows in parts), *inner), parts)
    # Gate and up in one: llama.cpp has no name of its own for it, but twice the rows.
    if stored == "ffn_up" and layer.experts is None and tensor.shape[0] == 2 * layer.intermediate:
        parts = tuple((f"{at}mlp.{name}.{kind}", layer.intermediate) for name in ("gate_proj", "up_proj"))
        return _Joined((2 * layer.intermediate, *inner), parts)
    if stored.endswith("_exps") and kind == "weight" and layer.experts is not None:
        return _stacked(at, stored.removesuffix("_exps"), layer, layer.experts.count, spec.hidden)
    return None


def _stacked(at: str, stored: str, layer: LayerSpec, count: int, hidden: int) -> _Joined | None:
    if stored not in _MLP:
        return None
    shape = (hidden, layer.intermediate) if stored == "ffn_down" else (layer.intermediate, hidden)
    name = _IN_LAYER[stored].removeprefix("mlp.")
    parts = tuple((f"{at}mlp.experts.{expert}.{name}.weight", shape[0]) for expert in range(count))
    return _Joined((count, *shape), parts)


def _cut(tensor: GgufTensor, joined: _Joined) -> dict[str, StoredTensor]:
    if tensor.shape != joined.shape:
        raise ModelFileError(
            f"{tensor.file.name}: tensor {tensor.name} has shape {list(tensor.shape)}, "
            f"the configuration asks for {list(joined.shape)}"
        )
    whole, start, parts = _stored(tensor, tensor.name), 0, {}
    for name, rows in joined.parts:
        parts[name] = whole.rows(name, start, rows)
        start += rows
    return parts


def _stored(tensor: GgufTensor, name: str) -> StoredTensor:
    info = TensorInfo(name, tensor.shape, tensor.format, tensor.nbytes)
    return StoredTensor(info, tensor.file, tensor.offset)


def _pair(stored: dict[str, StoredTensor], head_dim: int) -> None:
    """Marks the rows of q and k, which llama.cpp stores so that the components of a pair are neighbours."""
    for name, tensor in stored.items():
        if ".q_proj." in name or ".k_proj." in name:
            stored[name] = replace(tensor, paired_rows=head_dim)
