"""A Hugging Face folder's configuration files to a `ModelSpec`. Absent keys mean what they mean there."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenmill.models.end_tokens import declared_ids
from tokenmill.models.families import Family, family_of_class
from tokenmill.models.fields import (
    EPSILONS,
    MAX_HEADS,
    MAX_LAYERS,
    MAX_POSITION,
    MAX_VOCAB,
    MAX_WIDTH,
    SCORE_FACTORS,
    Fields,
)
from tokenmill.models.hf_layers import experts_of_layers, sliding_layers
from tokenmill.models.hf_rope import read_rope, served_positions
from tokenmill.models.json_file import read_json_object
from tokenmill.models.spec import ExpertsSpec, LayerSpec, ModelSpec

MAX_CONFIG_BYTES = 4 << 20

_ACTIVATIONS: Mapping[str, Literal["silu", "gelu_tanh"]] = {
    "silu": "silu",
    "gelu_pytorch_tanh": "gelu_tanh",
}
# Keys where null says something else than an absent key: all heads, hidden / heads, no window.
_NULLABLE = ("num_key_value_heads", "head_dim", "sliding_window")
# Features no architecture here computes; a file that asks for one would be computed wrongly.
UNSUPPORTED = (
    "attn_logit_softcapping",
    "final_logit_softcapping",
    "use_bidirectional_attention",
    "shared_expert_intermediate_size",
    "n_shared_experts",
)


@dataclass(frozen=True)
class ModelConfig:
    """The configuration of a folder.

    Attributes:
        whole: config.json.
        text: the part of it that describes the language model; absent keys have the family's values.
        generation: generation_config.json; empty where there is none.
    """

    family: Family
    whole: Fields
    text: Fields
    generation: Fields


def read_config(folder: Path) -> ModelConfig:
    """Reads config.json and generation_config.json, and finds the family.

    Raises:
        ModelFileError: no config.json, or an unsupported architecture or feature.
    """
    whole = Fields("config.json", read_json_object(folder / "config.json", MAX_CONFIG_BYTES))
    listed = whole.strings("architectures")
    family = family_of_class(listed[0] if listed else "", whole.text("model_type", ""))
    text = _text_part(whole, family).filled(family.absent, nullable=_NULLABLE)
    if not text.flag("is_causal", True):
        raise text.error("is_causal", "true: tokens that look at later ones are not supported")
    for key in UNSUPPORTED:
        if text.get(key):
            raise text.error(key, "absent: it is not supported")
    return ModelConfig(family, whole, text, _generation(folder))


def _text_part(whole: Fields, family: Family) -> Fields:
    """All of config.json, or the language model's part where the model also sees pictures."""
    if "text_config" not in whole:
        return whole
    text = whole.nested("text_config")
    if text.text("model_type", family.model_types[0]) not in family.model_types:
        raise text.error("model_type", f"{' or '.join(family.model_types)} in this architecture")
    return text


def spec_from(config: ModelConfig, *, has_lm_head: bool) -> ModelSpec:
    """The model, with the ends of generation_config.json too.

    Raises:
        ModelFileError: an unsupported feature or an unusable value.
    """
    text, family = config.text, config.family
    vocab_size = text.integer("vocab_size", 1, MAX_VOCAB)
    hidden = text.integer("hidden_size", 1, MAX_WIDTH)
    layers, max_position = _layers(text, family)
    files = (config.generation, config.whole, text)
    return ModelSpec(
        architecture=family.architecture,
        vocab_size=vocab_size,
        hidden=hidden,
        layers=layers,
        norm_eps=text.number("rms_norm_eps", *EPSILONS),
        max_position=max_position,
        tied_embeddings=text.flag("tie_word_embeddings", False) or not has_lm_head,
        embedding_scale=math.sqrt(hidden) if family.scaled_embeddings else 1.0,
        bos_id=next(declared_ids("bos", files, vocab_size), None),
        eos_ids=tuple(dict.fromkeys(declared_ids("eos", files, vocab_size))),
    )


def _layers(text: Fields, family: Family) -> tuple[tuple[LayerSpec, ...], int]:
    """The layers, and the longest context they can be served at."""
    count = text.integer("num_hidden_layers", 1, MAX_LAYERS)
    heads, kv_heads, head_dim = _heads(text)
    trained = text.integer("max_position_embeddings", 1, MAX_POSITION)
    rope = read_rope(text, family, head_dim, trained)
    local = read_rope(text, family, head_dim, trained, local=True) if family.local_rope else rope
    max_position = served_positions(rope, family, trained)
    window = _window(text, max_position)
    configured = family.biases == "configured" and text.flag("attention_bias", False)

    def layer(slides: bool, experts: ExpertsSpec | None) -> LayerSpec:
        width = family.experts.width if family.experts and experts else "intermediate_size"
        return LayerSpec(
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            intermediate=text.integer(width, 1, MAX_WIDTH),
            scale=text.number(family.score_key, *SCORE_FACTORS, head_dim) ** -0.5,
            rope=local if slides else rope,
            window=window if slides else None,
            qkv_bias=configured or family.biases == "qkv",
            out_bias=configured,
            mlp_bias=family.mlp_bias and text.flag("mlp_bias", False),
            qk_norm=family.qk_norm,
            post_norms=family.post_norms,
            activation=_activation(text, family.activation_key),
            experts=experts,
        )

    kinds = zip(sliding_layers(text, family, count), experts_of_layers(text, family, count), strict=True)
    return tuple(layer(slides, experts) for slides, experts in kinds), max_position


def _heads(text: Fields) -> tuple[int, int, int]:
    """Query heads, KV heads, and the size of one."""
    hidden = text.integer("hidden_size", 1, MAX_WIDTH)
    heads = text.integer("num_attention_heads", 1, MAX_HEADS)
    kv_heads = text.integer("num_key_value_heads", 1, MAX_HEADS, heads)
    if heads % kv_heads:
        raise text.error("num_key_value_heads", f"a divisor of num_attention_heads, {heads}")
    if "head_dim" not in text and hidden % heads:
        raise text.error("head_dim", f"given: hidden_size {hidden} is no multiple of {heads} heads")
    head_dim = text.integer("head_dim", 2, MAX_WIDTH, hidden // heads)
    if head_dim % 2:
        raise text.error("head_dim", "even")
    return heads, kv_heads, head_dim


def _window(text: Fields, max_position: int) -> int | None:
    """None where there is none, or it is as long as the context."""
    if "sliding_window" not in text:
        return None
    window = text.integer("sliding_window", 1, MAX_POSITION)
    return window if window < max_position else None


def _activation(text: Fields, key: str) -> Literal["silu", "gelu_tanh"]:
    found = _ACTIVATIONS.get(text.text(key))
    if found is None:
        raise text.error(key, f"{' or '.join(_ACTIVATIONS)}; other activations are not supported")
    return found


def _generation(folder: Path) -> Fields:
    """generation_config.json; empty when it is not there."""
    path = folder / "generation_config.json"
    return Fields(path.name, read_json_object(path, MAX_CONFIG_BYTES) if path.exists() else {})
