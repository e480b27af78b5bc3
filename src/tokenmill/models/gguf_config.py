"""GGUF metadata to a `ModelSpec`. Keys are those of ggml's docs/gguf.md."""

from __future__ import annotations

import contextlib
import math
import struct

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import gguf_ends
from tokenmill.models.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITION, MAX_VOCAB, MAX_WIDTH, Fields
from tokenmill.models.gguf import GgufHeader
from tokenmill.models.spec import LayerSpec, ModelSpec, RopeSpec

ARCHITECTURES = ("llama",)


def spec_of(header: GgufHeader, label: str, rope_factors: tuple[float, ...]) -> ModelSpec:
    """The model a header describes.

    Args:
        label: file name, for messages.
        rope_factors: content of `rope_freqs.weight`, empty where the file has none.

    Raises:
        ModelFileError: an unsupported architecture or feature, or an unusable value.
    """
    fields = Fields(label, header.metadata)
    architecture = fields.text("general.architecture")
    if architecture not in ARCHITECTURES:
        raise ModelFileError(
            f"{label}: architecture {show(architecture)} is not supported; supported is {ARCHITECTURES[0]}"
        )
    _refuse_unsupported(fields)
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None:
        raise ModelFileError(f"{label}: tensor token_embd.weight is missing")
    vocab_size = embedding.shape[0]
    if vocab_size > MAX_VOCAB:
        raise ModelFileError(f"{label}: a vocabulary of {vocab_size} tokens; at most {MAX_VOCAB} are allowed")
    max_position = fields.integer("llama.context_length", 1, MAX_POSITION)
    layers = _layers(fields, header, max_position, rope_factors)
    bos = fields.token_ids("tokenizer.ggml.bos_token_id", vocab_size)
    return ModelSpec(
        architecture=architecture,
        vocab_size=vocab_size,
        hidden=fields.integer("llama.embedding_length", 1, MAX_WIDTH),
        layers=layers,
        norm_eps=_single(fields.positive("llama.attention.layer_norm_rms_epsilon")),
        max_position=max_position,
        tied_embeddings="output.weight" not in header.tensors,
        bos_id=bos[0] if bos else None,
        eos_ids=gguf_ends(fields, vocab_size),
    )


def _refuse_unsupported(fields: Fields) -> None:
    if fields.integer("llama.expert_count", 0, 1 << 16, 0):
        raise fields.error("llama.expert_count", "0: mixtures of experts are not supported")


def _layers(
    fields: Fields, header: GgufHeader, max_position: int, rope_factors: tuple[float, ...]
) -> tuple[LayerSpec, ...]:
    count = fields.integer("llama.block_count", 1, MAX_LAYERS)
    heads = fields.integers("llama.attention.head_count", count, 1, MAX_HEADS)
    kv_heads = fields.integers("llama.attention.head_count_kv", count, 1, MAX_HEADS, default=heads)
    intermediate = fields.integers("llama.feed_forward_length", count, 1, MAX_WIDTH)
    head_dim = _head_dim(fields, heads[0])
    rope = _rope(fields, head_dim, rope_factors)
    window = fields.integer("llama.attention.sliding_window", 0, MAX_POSITION, 0)
    if any(h % kv for h, kv in zip(heads, kv_heads, strict=True)):
        raise fields.error("llama.attention.head_count_kv", "a divisor of llama.attention.head_count")
    return tuple(
        LayerSpec(
            heads=heads[n],
            kv_heads=kv_heads[n],
            head_dim=head_dim,
            intermediate=intermediate[n],
            scale=head_dim**-0.5,
            rope=rope,
            window=window if 0 < window < max_position else None,
            qkv_bias=f"blk.{n}.attn_q.bias" in header.tensors,
            out_bias=f"blk.{n}.attn_output.bias" in header.tensors,
            mlp_bias=f"blk.{n}.ffn_up.bias" in header.tensors,
        )
        for n in range(count)
    )


def _head_dim(fields: Fields, heads: int) -> int:
    hidden = fields.integer("llama.embedding_length", 1, MAX_WIDTH)
    if "llama.attention.key_length" not in fields and hidden % heads:
        raise fields.error(
            "llama.attention.key_length", f"given: width {hidden} is no multiple of {heads} heads"
        )
    head_dim = fields.integer("llama.attention.key_length", 2, MAX_WIDTH, hidden // heads)
    for key in ("llama.attention.value_length", "llama.rope.dimension_count"):
        if fields.integer(key, 1, MAX_WIDTH, head_dim) != head_dim:
            raise fields.error(key, f"{head_dim}, the size of a head")
    if head_dim % 2:
        raise fields.error("llama.attention.key_length", "even")
    return head_dim


def _rope(fields: Fields, head_dim: int, factors: tuple[float, ...]) -> RopeSpec:
    theta = _single(fields.positive("llama.rope.freq_base", 10000.0))
    kind = fields.text("llama.rope.scaling.type", "none")
    if kind not in ("none", "linear"):
        raise fields.error("llama.rope.scaling.type", "none or linear, or come as rope_freqs.weight (llama3)")
    linear = 1.0
    if kind == "linear":
        linear = _single(fields.positive("llama.rope.scaling.factor"))
    elif "llama.rope.scale_linear" in fields:
        linear = _single(fields.positive("llama.rope.scale_linear"))
    if factors:
        if linear != 1:
            raise ModelFileError(
                f"{fields.label}: rope_freqs.weight together with linear scaling is not supported"
            )
        if len(factors) != head_dim // 2 or not all(0 < f < math.inf for f in factors):
            raise ModelFileError(
                f"{fields.label}: rope_freqs.weight must hold {head_dim // 2} numbers above 0"
            )
        return RopeSpec(theta=theta, dim=head_dim, kind="factors", factors=factors)
    if linear != 1:
        return RopeSpec(theta=theta, dim=head_dim, kind="linear", factor=linear)
    return RopeSpec(theta=theta, dim=head_dim)


def _single(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 1e-05, where the file's number is
    9.999999747378752e-06. It is the number that was meant, and the one in the model's config.json."""
    texts = (f"{value:.{digits}g}" for digits in range(6, 9))
    return next((float(text) for text in texts if _float32(float(text)) == _float32(value)), value)


def _float32(value: float) -> float:
    """Rounded to single precision; a value beyond its range stays (a file may store doubles)."""
    with contextlib.suppress(OverflowError):
        return float(struct.unpack("<f", struct.pack("<f", value))[0])
    return value
