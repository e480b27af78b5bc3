"""A Hugging Face folder's configuration files to a `ModelSpec`. Absent keys mean what they mean there."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import declared_ids
from tokenmill.models.fields import MAX_HEADS, MAX_LAYERS, MAX_POSITION, MAX_VOCAB, MAX_WIDTH, Fields
from tokenmill.models.json_file import read_json_object
from tokenmill.models.spec import LayerSpec, ModelSpec, RopeSpec

MAX_CONFIG_BYTES = 4 << 20


@dataclass(frozen=True)
class _Family:
    """Mistral is Llama with a window. What differs is what an absent key means."""

    max_position: int
    kv_heads: int | None = None
    window: int | None = None


_LLAMA = _Family(max_position=2048)
_MISTRAL = _Family(max_position=131072, kv_heads=8, window=4096)
# By `architectures`, and by `model_type` for files without it.
_FAMILIES: Mapping[str, _Family] = {
    "LlamaForCausalLM": _LLAMA,
    "MistralForCausalLM": _MISTRAL,
    "llama": _LLAMA,
    "mistral": _MISTRAL,
}


def read_spec(folder: Path, *, has_lm_head: bool) -> ModelSpec:
    """The model that config.json describes, with the ends of generation_config.json too.

    Raises:
        ModelFileError: no config.json, an unsupported architecture or feature, or an unusable value.
    """
    config = Fields("config.json", read_json_object(folder / "config.json", MAX_CONFIG_BYTES))
    family = _family(config)
    _refuse_unsupported(config)
    max_position = config.integer("max_position_embeddings", 1, MAX_POSITION, family.max_position)
    vocab_size = config.integer("vocab_size", 1, MAX_VOCAB)
    layer = _layer(config, family, max_position)
    files = (_generation(folder), config)
    return ModelSpec(
        architecture="llama",
        vocab_size=vocab_size,
        hidden=config.integer("hidden_size", 1, MAX_WIDTH),
        layers=(layer,) * config.integer("num_hidden_layers", 1, MAX_LAYERS),
        norm_eps=config.positive("rms_norm_eps", 1e-6),
        max_position=max_position,
        tied_embeddings=config.flag("tie_word_embeddings", False) or not has_lm_head,
        bos_id=next(declared_ids("bos", files, vocab_size), None),
        eos_ids=tuple(dict.fromkeys(declared_ids("eos", files, vocab_size))),
    )


def _family(config: Fields) -> _Family:
    listed = config.strings("architectures")
    name = listed[0] if listed else config.text("model_type", "")
    if name not in _FAMILIES:
        raise ModelFileError(
            f"config.json: architecture {show(name)} is not supported; supported are LlamaForCausalLM and "
            "MistralForCausalLM"
        )
    return _FAMILIES[name]


def _refuse_unsupported(config: Fields) -> None:
    if config.text("hidden_act", "silu") != "silu":
        raise config.error("hidden_act", "silu; other activations are not supported")


def _layer(config: Fields, family: _Family, max_position: int) -> LayerSpec:
    hidden = config.integer("hidden_size", 1, MAX_WIDTH)
    heads = config.integer("num_attention_heads", 1, MAX_HEADS)
    absent = heads if config.is_null("num_key_value_heads") else family.kv_heads or heads
    kv_heads = config.integer("num_key_value_heads", 1, MAX_HEADS, absent)
    if heads % kv_heads:
        raise config.error("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    if "head_dim" not in config and hidden % heads:
        raise config.error("head_dim", f"given: hidden_size {hidden} is no multiple of {heads} heads")
    head_dim = config.integer("head_dim", 2, MAX_WIDTH, hidden // heads)
    if head_dim % 2:
        raise config.error("head_dim", "even")
    attention_bias = config.flag("attention_bias", False)
    return LayerSpec(
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=config.integer("intermediate_size", 1, MAX_WIDTH),
        scale=head_dim**-0.5,
        rope=_rope(config, head_dim, max_position),
        window=_window(config, family, max_position),
        qkv_bias=attention_bias,
        out_bias=attention_bias,
        mlp_bias=config.flag("mlp_bias", False),
    )


def _window(config: Fields, family: _Family, max_position: int) -> int | None:
    """None where the window is as long as the context, or the family has none."""
    if family.window is None or config.is_null("sliding_window"):
        return None
    window = config.integer("sliding_window", 1, MAX_POSITION, family.window)
    return window if window < max_position else None


def _rope(config: Fields, head_dim: int, max_position: int) -> RopeSpec:
    """From `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (before)."""
    rope = config.nested("rope_parameters" if "rope_parameters" in config else "rope_scaling")
    theta = rope.positive("rope_theta", config.positive("rope_theta", 10000.0))
    share = rope.positive("partial_rotary_factor", config.positive("partial_rotary_factor", 1.0))
    if share != 1:
        raise ModelFileError(f"config.json: partial_rotary_factor {share} is not supported; supported is 1")
    kind = rope.text("rope_type", rope.text("type", "default"))
    if kind == "default":
        return RopeSpec(theta=theta, dim=head_dim)
    if kind == "linear":
        return RopeSpec(theta=theta, dim=head_dim, kind="linear", factor=rope.positive("factor"))
    if kind != "llama3":
        raise ModelFileError(
            f"config.json: rope type {show(kind)} is not supported; supported are default, linear and llama3"
        )
    low, high = rope.positive("low_freq_factor"), rope.positive("high_freq_factor")
    if low >= high:
        raise rope.error("low_freq_factor", f"below high_freq_factor, {high}")
    return RopeSpec(
        theta=theta,
        dim=head_dim,
        kind="llama3",
        factor=rope.positive("factor"),
        low_freq_factor=low,
        high_freq_factor=high,
        original_max_position=rope.integer("original_max_position_embeddings", 1, MAX_POSITION, max_position),
    )


def _generation(folder: Path) -> Fields:
    """generation_config.json; empty when it is not there."""
    path = folder / "generation_config.json"
    return Fields(path.name, read_json_object(path, MAX_CONFIG_BYTES) if path.exists() else {})
