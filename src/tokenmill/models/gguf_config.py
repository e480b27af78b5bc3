"""GGUF metadata to a `ModelSpec`. Keys are those of ggml's docs/gguf.md, below the architecture's name."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

from tokenmill.core.errors import ModelFileError
from tokenmill.core.request import Pooling
from tokenmill.models.end_tokens import gguf_ends
from tokenmill.models.families import Family, family_of_gguf
from tokenmill.models.fields import (
    EPSILONS,
    MAX_EXPERTS,
    MAX_EXPERTS_IN_ALL,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_VOCAB,
    MAX_WIDTH,
    SCORE_FACTORS,
    Fields,
)
from tokenmill.models.gguf import GgufHeader
from tokenmill.models.gguf_rope import freq_base, longest_context, read_rope, single
from tokenmill.models.spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec

# Features by their key, and the value that leaves them off: another one would be computed otherwise.
_OFF: Mapping[str, object] = {
    "attention.causal": True,
    "attention.clamp_kqv": 0,
    "attention.max_alibi_bias": 0,
    "attn_logit_softcapping": 0,
    "final_logit_softcapping": 0,
    "expert_gating_func": 1,
    "expert_group_count": 0,
    "expert_shared_count": 0,
    "expert_weights_scale": 1,
    "leading_dense_block_count": 0,
    "logit_scale": 0,
    "residual_scale": 0,
    "use_parallel_residual": False,
}
# llama.cpp's numbers; other ways of pooling are not offered.
_POOLING: Mapping[object, Pooling] = {1: "mean", 3: "last"}
_MOST_POOLINGS = 16
_ACTIVATIONS: Mapping[object, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
_LOCAL_THETA = 10000.0
# Files do not say what Gemma 3 divides attention scores by. Of its sizes the one of 62 layers (27B) divides
# by the root of hidden / heads, the others by that of a head's size.
_GEMMA3_27B_LAYERS = 62


@dataclass(frozen=True)
class _File:
    """A header with what its family says about it. Keys are given without the architecture's name."""

    fields: Fields
    header: GgufHeader
    family: Family

    def key(self, name: str) -> str:
        return f"{self.family.gguf}.{name}"

    def integer(self, name: str, low: int, high: int, default: int | None = None) -> int:
        return self.fields.integer(self.key(name), low, high, default)

    def number(self, name: str, low: float, high: float, default: float | None = None) -> float:
        value = self.fields.number(self.key(name), low, high, default)
        return single(value) if self.key(name) in self.fields else value

    def wrong(self, name: str, allowed: str) -> ModelFileError:
        return self.fields.error(self.key(name), allowed)

    def holds(self, tensor: str) -> bool:
        return tensor in self.header.tensors


def read_family(header: GgufHeader, label: str) -> Family:
    """The family of the file called `label`.

    Raises:
        ModelFileError: an architecture that is not supported.
    """
    fields = Fields(label, header.metadata)
    architecture = fields.text("general.architecture")
    experts = fields.integer(f"{architecture}.expert_count", 0, MAX_EXPERTS, 0) > 0
    return family_of_gguf(architecture, experts=experts, label=label)


def spec_of(header: GgufHeader, family: Family, label: str) -> ModelSpec:
    """The model a header describes.

    Raises:
        ModelFileError: an unsupported feature, or an unusable value.
    """
    file = _File(Fields(label, header.metadata), header, family)
    for name, off in _OFF.items():
        if file.fields.get(file.key(name)) not in (None, off):
            raise file.wrong(name, f"{off}; other values are not supported")
    vocab_size = _vocab_size(file)
    hidden = file.integer("embedding_length", 1, MAX_WIDTH)
    context = file.integer("context_length", 1, MAX_POSITION)
    head_dim = _head_dim(file, hidden)
    dim = _rotated(file, head_dim)
    rope = read_rope(file.fields, header, file.key(""), dim, context, local=family.local_rope)
    max_position = longest_context(rope, context)
    bos = file.fields.token_ids("tokenizer.ggml.bos_token_id", vocab_size)
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=vocab_size,
        hidden=hidden,
        layers=_with_windows(file, _layers(file, hidden, head_dim, rope), max_position),
        norm_eps=file.number("attention.layer_norm_rms_epsilon", *EPSILONS),
        max_position=max_position,
        tied_embeddings=not file.holds("output.weight"),
        embedding_scale=math.sqrt(hidden) if family.scaled_embeddings else 1.0,
        bos_id=bos[0] if bos else None,
        eos_ids=gguf_ends(file.fields, vocab_size),
        pooling=_POOLING.get(file.integer("pooling_type", 0, _MOST_POOLINGS, 0)),
    )


def _vocab_size(file: _File) -> int:
    embedding = file.header.tensors.get("token_embd.weight")
    label = file.fields.label
    if embedding is None:
        raise ModelFileError(f"{label}: tensor token_embd.weight is missing")
    size = embedding.shape[0]
    if size > MAX_VOCAB:
        raise ModelFileError(f"{label}: a vocabulary of {size} tokens; at most {MAX_VOCAB} are allowed")
    return size


def _heads(file: _File) -> list[int]:
    """Query heads of every layer."""
    count = file.integer("block_count", 1, MAX_LAYERS)
    return file.fields.integers(file.key("attention.head_count"), count, 1, MAX_HEADS)


def _head_dim(file: _File, hidden: int) -> int:
    heads = _heads(file)[0]
    if file.key("attention.key_length") not in file.fields and hidden % heads:
        raise file.wrong("attention.key_length", f"given: width {hidden} is no multiple of {heads} heads")
    head_dim = file.integer("attention.key_length", 2, MAX_WIDTH, hidden // heads)
    if file.integer("attention.value_length", 1, MAX_WIDTH, head_dim) != head_dim:
        raise file.wrong("attention.value_length", f"{head_dim}, the size of a head")
    if head_dim % 2:
        raise file.wrong("attention.key_length", "even")
    return head_dim


def _rotated(file: _File, head_dim: int) -> int:
    """Components of a head that are rotated."""
    dim = file.integer("rope.dimension_count", 1, MAX_WIDTH, head_dim)
    partial = file.family.partial_rotary
    if dim == head_dim or (partial and dim < head_dim and dim % 2 == 0):
        return dim
    less = ", or an even number below it" if partial else ""
    raise file.wrong("rope.dimension_count", f"{head_dim}, the size of a head{less}")


def _layers(file: _File, hidden: int, head_dim: int, rope: RopeSpec) -> list[LayerSpec]:
    """The layers, as if each looked at the whole context."""
    family, heads = file.family, _heads(file)
    count = len(heads)
    kv_heads = file.fields.integers(file.key("attention.head_count_kv"), count, 1, MAX_HEADS, default=heads)
    if any(h % kv for h, kv in zip(heads, kv_heads, strict=True)):
        raise file.wrong("attention.head_count_kv", f"a divisor of {file.key('attention.head_count')}")
    experts = _experts(file, count)
    width = file.key("expert_feed_forward_length")
    if experts is None or width not in file.fields:
        width = file.key("feed_forward_length")
    intermediate = file.fields.integers(width, count, 1, MAX_WIDTH)
    by_width = family.score_key == "query_pre_attn_scalar" and count == _GEMMA3_27B_LAYERS
    by_default = (hidden / heads[0] if by_width else head_dim) ** -0.5
    scale = file.number("attention.scale", *SCORE_FACTORS, by_default)
    return [
        LayerSpec(
            heads=heads[n],
            kv_heads=kv_heads[n],
            head_dim=head_dim,
            intermediate=intermediate[n],
            scale=scale,
            rope=rope,
            qkv_bias=file.holds(f"blk.{n}.attn_q.bias") or file.holds(f"blk.{n}.attn_qkv.bias"),
            out_bias=file.holds(f"blk.{n}.attn_output.bias"),
            mlp_bias=file.holds(f"blk.{n}.ffn_up.bias"),
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            activation=_ACTIVATIONS[family.absent[family.activation_key]],
            experts=experts,
        )
        for n in range(count)
    ]


def _experts(file: _File, layers: int) -> ExpertsSpec | None:
    if file.family.experts is None:
        return None
    count = file.integer("expert_count", 1, min(MAX_EXPERTS, MAX_EXPERTS_IN_ALL // layers))
    renormalize = file.fields.flag(file.key("expert_weights_norm"), True)
    return ExpertsSpec(count, file.integer("expert_used_count", 1, count), renormalize)


def _with_windows(file: _File, layers: list[LayerSpec], max_position: int) -> tuple[LayerSpec, ...]:
    """Gives windows to the layers that have them and, in some families, a rotary embedding of their own.

    Families whose window has a switch stay without: a file does not say whether it is on, and models have it
    off.
    """
    window = file.integer("attention.sliding_window", 0, MAX_POSITION, 0)
    if not window or file.family.window_switch:
        return tuple(layers)
    rope = layers[0].rope
    if file.family.local_rope:
        rope = RopeSpec(freq_base(file.fields, file.key("rope.freq_base_swa"), _LOCAL_THETA), rope.dim)
    seen = window if window < max_position else None
    return tuple(
        replace(layer, rope=rope, window=seen) if local else layer
        for layer, local in zip(layers, _local(file, len(layers)), strict=True)
    )


def _local(file: _File, count: int) -> list[bool]:
    """Which layers have a window: by a list, or by a period whose last layer has none (0: all have one)."""
    listed = file.fields.get(file.key("attention.sliding_window_pattern"))
    if isinstance(listed, list):
        flags = [flag for flag in listed if isinstance(flag, bool)]
        if not len(flags) == len(listed) == count:
            raise file.wrong("attention.sliding_window_pattern", f"an integer, or {count} of true and false")
        return flags
    period = file.integer("attention.sliding_window_pattern", 0, MAX_LAYERS, file.family.full_every)
    return [period == 0 or n % period < period - 1 for n in range(count)]
