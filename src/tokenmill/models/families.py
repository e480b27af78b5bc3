"""The model families that can be read from files: one table, an entry for everything particular to one.

`engine.models` says how a family computes; an entry here says how its files describe it. What every family
shares (names of keys, formulas of RoPE, container formats) is in the readers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError


@dataclass(frozen=True)
class ExpertsKeys:
    """Where config.json describes a mixture of experts.

    Attributes:
        count: its number of experts, by any of these keys.
        width: inner width of an expert.
        renormalize: the chosen weights sum to 1; None is said by `norm_topk_prob`.
    """

    count: tuple[str, ...]
    width: str
    renormalize: bool | None = None


@dataclass(frozen=True)
class Family:
    """How the files of one family are to be read.

    Attributes:
        architecture: key of `engine.models.BUILDERS`; families that compute alike share it.
        classes: Hugging Face class names, as in `architectures`; those without an output head too, as which
            embedding models are often saved.
        model_types: `model_type`s, for a config.json without `architectures`. That of a `text_config` must be
            among them.
        gguf: `general.architecture` of its GGUF files; None where they are those of another family. A file
            with experts belongs to the family with `experts`.
        absent: what an absent key of config.json means: the default of transformers' configuration class.
            A key that is not here must be given.
        biases: q, k, v and the attention's output have biases if `attention_bias` says so (configured), q, k
            and v always (qkv), or never (none). In GGUF a bias is there or not.
        mlp_bias: the MLP has biases if `mlp_bias` says so.
        qk_norm, post_norms: as in `LayerSpec`.
        norm_offset: added to norm weights stored in safetensors (Gemma stores them less 1; GGUF does not).
        scaled_embeddings: embeddings are multiplied by sqrt(hidden).
        activation_key: where config.json names the MLP's activation.
        score_key: attention scores are divided by the square root of this key.
        windows: which layers look back on `sliding_window` tokens only: none, all, or those (layers) that
            `layer_types` or an older key names.
        window_switch: windows count only where `use_sliding_window` is true.
        full_every: without `layer_types`, each so many-th layer has no window; 0 where `max_window_layers`
            decides (layers below it have none).
        local_rope: layers with a window have a rotary embedding of their own, `rope_local_base_freq`, and
            `max_position_embeddings` counts the scaling of the others.
        partial_rotary: `partial_rotary_factor` may leave part of a head unrotated.
        rope_names: what the family calls a kind of RoPE otherwise.
        gguf_pairs: GGUF stores rows of q and k so that the rotary components of a pair are neighbours.
        renamed: parts of tensor names in safetensors and what they are called canonically.
        experts: keys of its mixture of experts.
    """

    architecture: str
    classes: tuple[str, ...]
    model_types: tuple[str, ...]
    gguf: str | None
    absent: Mapping[str, object]
    biases: Literal["configured", "qkv", "none"] = "none"
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    norm_offset: float = 0.0
    scaled_embeddings: bool = False
    activation_key: str = "hidden_act"
    score_key: str = "head_dim"
    windows: Literal["none", "all", "layers"] = "none"
    window_switch: bool = False
    full_every: int = 0
    local_rope: bool = False
    partial_rotary: bool = False
    rope_names: Mapping[str, str] = field(default_factory=dict)
    gguf_pairs: bool = False
    renamed: tuple[tuple[str, str], ...] = ()
    experts: ExpertsKeys | None = None


_COMMON: Mapping[str, object] = MappingProxyType(
    {
        "hidden_act": "silu",
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "tie_word_embeddings": False,
        "sliding_window": None,
    }
)
_QWEN: Mapping[str, object] = MappingProxyType(
    {
        **_COMMON,
        "max_position_embeddings": 32768,
        "num_key_value_heads": 32,
        "sliding_window": 4096,
        "max_window_layers": 28,
    }
)

FAMILIES: tuple[Family, ...] = (
    Family(
        architecture="llama",
        classes=("LlamaForCausalLM", "LlamaModel"),
        model_types=("llama",),
        gguf="llama",
        absent={**_COMMON, "max_position_embeddings": 2048},
        biases="configured",
        mlp_bias=True,
        gguf_pairs=True,
    ),
    Family(
        architecture="llama",
        classes=("MistralForCausalLM", "MistralModel", "Mistral3ForConditionalGeneration"),
        model_types=("mistral", "mistral3"),
        gguf=None,
        absent={
            **_COMMON,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "sliding_window": 4096,
        },
        windows="all",
    ),
    Family(
        architecture="qwen2",
        classes=("Qwen2ForCausalLM", "Qwen2Model"),
        model_types=("qwen2",),
        gguf="qwen2",
        absent=_QWEN,
        biases="qkv",
        windows="layers",
        window_switch=True,
    ),
    Family(
        architecture="qwen3",
        classes=("Qwen3ForCausalLM", "Qwen3Model"),
        model_types=("qwen3",),
        gguf="qwen3",
        absent={**_QWEN, "head_dim": 128},
        biases="configured",
        qk_norm=True,
        windows="layers",
        window_switch=True,
    ),
    Family(
        architecture="gemma3",
        classes=("Gemma3ForCausalLM", "Gemma3TextModel", "Gemma3ForConditionalGeneration"),
        model_types=("gemma3_text", "gemma3"),
        gguf="gemma3",
        absent={
            **_COMMON,
            "vocab_size": 262208,
            "hidden_size": 2304,
            "intermediate_size": 9216,
            "num_hidden_layers": 26,
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "hidden_activation": "gelu_pytorch_tanh",
            "max_position_embeddings": 131072,
            "query_pre_attn_scalar": 256,
            "rope_theta": 1000000.0,
            "rope_local_base_freq": 10000.0,
            "sliding_window": 4096,
            "tie_word_embeddings": True,
        },
        biases="configured",
        qk_norm=True,
        post_norms=True,
        norm_offset=1.0,
        scaled_embeddings=True,
        activation_key="hidden_activation",
        score_key="query_pre_attn_scalar",
        windows="layers",
        full_every=6,
        local_rope=True,
    ),
    Family(
        architecture="phi3",
        classes=("Phi3ForCausalLM", "Phi3Model"),
        model_types=("phi3",),
        gguf="phi3",
        absent={
            **_COMMON,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 4096,
            "rms_norm_eps": 1e-5,
        },
        windows="all",
        partial_rotary=True,
        rope_names={"su": "longrope", "yarn": "longrope"},
    ),
    Family(
        architecture="mixtral",
        classes=("MixtralForCausalLM", "MixtralModel"),
        model_types=("mixtral",),
        gguf="llama",
        absent={
            **_COMMON,
            "max_position_embeddings": 131072,
            "num_key_value_heads": 8,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1000000.0,
            "num_local_experts": 8,
            "num_experts_per_tok": 2,
        },
        windows="all",
        gguf_pairs=True,
        renamed=(
            (".block_sparse_moe.", ".mlp."),
            (".w1.", ".gate_proj."),
            (".w2.", ".down_proj."),
            (".w3.", ".up_proj."),
        ),
        experts=ExpertsKeys(count=("num_local_experts",), width="intermediate_size", renormalize=True),
    ),
    Family(
        architecture="qwen3_moe",
        classes=("Qwen3MoeForCausalLM", "Qwen3MoeModel"),
        model_types=("qwen3_moe",),
        gguf="qwen3moe",
        absent={
            **_QWEN,
            "num_key_value_heads": 4,
            "decoder_sparse_step": 1,
            "moe_intermediate_size": 768,
            "num_experts": 128,
            "num_experts_per_tok": 8,
            "norm_topk_prob": False,
        },
        biases="configured",
        qk_norm=True,
        windows="all",
        window_switch=True,
        experts=ExpertsKeys(count=("num_local_experts", "num_experts"), width="moe_intermediate_size"),
    ),
)


def family_of_class(name: str, model_type: str) -> Family:
    """The family of a Hugging Face class or, where no class is given (empty), of a model type.

    Raises:
        ModelFileError: it is not known; the message lists what is.
    """
    for family in FAMILIES:
        if name in family.classes or (not name and model_type in family.model_types):
            return family
    known = ", ".join(name for family in FAMILIES for name in family.classes)
    raise ModelFileError(
        f"config.json: architecture {show(name or model_type)} is not supported; supported are {known}"
    )


def family_of_gguf(architecture: str, *, experts: bool, label: str) -> Family:
    """The family of a GGUF file by its `general.architecture` and whether it has experts.

    Args:
        label: file name, for messages.

    Raises:
        ModelFileError: it is not known, or not with (or without) experts.
    """
    for family in FAMILIES:
        if family.gguf == architecture and (family.experts is not None) == experts:
            return family
    known = list(dict.fromkeys(family.gguf for family in FAMILIES if family.gguf))
    if architecture in known:
        kind = "with experts" if experts else "without experts"
        raise ModelFileError(f"{label}: architecture {show(architecture)} {kind} is not supported")
    raise ModelFileError(
        f"{label}: architecture {show(architecture)} is not supported; supported are {', '.join(known)}"
    )
