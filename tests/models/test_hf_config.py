"""config.json to a model: what transformers reads from it, and a refusal of what cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import transformers

from support.model_files import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    LLAMA_CONFIG,
    VOCAB,
    hf_tensors,
    write_folder,
)
from tokenmill.core.errors import ModelFileError
from tokenmill.models.hf_config import read_config, spec_from
from tokenmill.models.source import open_model
from tokenmill.models.spec import ExpertsSpec, LayerSpec, ModelSpec, RopeSpec

MISTRAL = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}


def read_spec(folder: Path, *, has_lm_head: bool) -> ModelSpec:
    return spec_from(read_config(folder), has_lm_head=has_lm_head)


def spec(tmp_path: Path, config: dict[str, Any] | None = None, **files: Any) -> ModelSpec:
    write_folder(tmp_path, config=config, **files)
    return read_spec(tmp_path, has_lm_head=True)


def test_every_number_comes_from_the_configuration(tmp_path: Path) -> None:
    layer = LayerSpec(
        heads=HEADS,
        kv_heads=KV_HEADS,
        head_dim=HEAD_DIM,
        intermediate=INTERMEDIATE,
        scale=HEAD_DIM**-0.5,
        rope=RopeSpec(theta=10000.0, dim=HEAD_DIM),
    )
    assert spec(tmp_path) == ModelSpec(
        architecture="llama",
        vocab_size=VOCAB,
        hidden=HIDDEN,
        layers=(layer,) * LAYERS,
        norm_eps=1e-5,
        max_position=128,
        tied_embeddings=False,
        bos_id=1,
        eos_ids=(2,),
    )


OPTIONAL = (
    "num_key_value_heads",
    "max_position_embeddings",
    "rms_norm_eps",
    "rope_theta",
    "hidden_act",
    "tie_word_embeddings",
)


@pytest.mark.parametrize(
    ("family", "oracle"),
    [
        ({}, transformers.LlamaConfig),
        (MISTRAL, transformers.MistralConfig),
        ({"architectures": ["Qwen2ForCausalLM"]}, transformers.Qwen2Config),
        ({"architectures": ["Qwen3ForCausalLM"]}, transformers.Qwen3Config),
        ({"architectures": ["Gemma3ForCausalLM"]}, transformers.Gemma3TextConfig),
        ({"architectures": ["Phi3ForCausalLM"]}, transformers.Phi3Config),
        ({"architectures": ["MixtralForCausalLM"]}, transformers.MixtralConfig),
        ({"architectures": ["Qwen3MoeForCausalLM"]}, transformers.Qwen3MoeConfig),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_absent_keys_mean_what_they_mean_in_transformers(
    tmp_path: Path, family: dict[str, Any], oracle: Any
) -> None:
    absent = dict.fromkeys(OPTIONAL, ...)
    sizes = {"hidden_size": 512, "num_attention_heads": 32, "num_hidden_layers": 6}
    found = spec(tmp_path, {**family, **absent, **sizes})
    expected = oracle(**sizes)
    last = found.layers[-1]  # of Gemma's six the one that looks at the whole context
    assert (last.heads, last.kv_heads) == (32, expected.num_key_value_heads)
    assert last.head_dim == (getattr(expected, "head_dim", None) or 16)
    activation = getattr(expected, "hidden_act", None) or expected.hidden_activation
    assert last.activation == {"silu": "silu", "gelu_pytorch_tanh": "gelu_tanh"}[activation]
    assert last.scale == getattr(expected, "query_pre_attn_scalar", last.head_dim) ** -0.5
    kinds = getattr(expected, "layer_types", None) or ["sliding_attention"] * 6
    windows = [
        getattr(expected, "sliding_window", None) if kind == "sliding_attention" else None for kind in kinds
    ]
    assert [layer.window for layer in found.layers] == windows
    assert found.max_position == expected.max_position_embeddings
    assert found.norm_eps == expected.rms_norm_eps
    ropes = expected.rope_parameters
    assert last.rope.theta == ropes.get("full_attention", ropes)["rope_theta"]
    assert found.tied_embeddings == expected.tie_word_embeddings
    count = getattr(expected, "num_local_experts", None)
    experts = count and ExpertsSpec(
        count, expected.num_experts_per_tok, getattr(expected, "norm_topk_prob", True)
    )
    assert last.experts == experts
    if experts:
        width = getattr(expected, "moe_intermediate_size", INTERMEDIATE)
        assert last.intermediate == width


def test_a_configuration_saved_by_transformers_is_read(tmp_path: Path) -> None:
    config = transformers.MistralConfig(
        hidden_size=96,
        num_attention_heads=6,
        num_key_value_heads=3,
        head_dim=8,
        sliding_window=100,
        max_position_embeddings=1000,
        architectures=["MistralForCausalLM"],
        eos_token_id=[2, 7],
        rope_parameters={"rope_type": "llama3", "rope_theta": 1e6, **LLAMA3},
    )
    config.save_pretrained(tmp_path)
    found = read_spec(tmp_path, has_lm_head=True)
    layer = found.layers[0]
    assert (layer.heads, layer.kv_heads, layer.head_dim, layer.window) == (6, 3, 8, 100)
    assert found.layers[0].rope == RopeSpec(1e6, 8, "llama3", 8.0, 1.0, 4.0, 64)
    assert found.eos_ids == (2, 7)


def test_null_is_the_whole_context_for_a_window_and_all_heads_for_kv(tmp_path: Path) -> None:
    found = spec(tmp_path, {**MISTRAL, "sliding_window": None, "num_key_value_heads": None})
    assert (found.layers[0].window, found.layers[0].kv_heads) == (None, HEADS)


@pytest.mark.parametrize(("window", "expected"), [(32, 32), (127, 127), (128, None), (4096, None)])
def test_a_window_counts_only_when_shorter_than_the_context(
    tmp_path: Path, window: int, expected: int | None
) -> None:
    assert spec(tmp_path, {**MISTRAL, "sliding_window": window}).layers[0].window == expected


def test_llama_has_no_window(tmp_path: Path) -> None:
    assert spec(tmp_path, {"sliding_window": 16}).layers[0].window is None


def test_the_part_of_a_model_that_sees_pictures_is_its_text_config(tmp_path: Path) -> None:
    """What gemma-3-4b-it has: few keys in the part, ends outside of it."""
    text = {
        "model_type": "gemma3_text",
        "hidden_size": 2560,
        "num_hidden_layers": 34,
        "intermediate_size": 10240,
        "sliding_window": 1024,
        "rope_scaling": {"rope_type": "linear", "factor": 8.0},
    }
    absent = dict.fromkeys(LLAMA_CONFIG, ...)
    outer = {
        **absent,
        "architectures": ["Gemma3ForConditionalGeneration"],
        "text_config": text,
        "eos_token_id": [1, 106],
    }
    found = spec(tmp_path, outer)
    expected = transformers.Gemma3Config(text_config=dict(text)).text_config
    assert (found.hidden, found.vocab_size, len(found.layers)) == (2560, expected.vocab_size, 34)
    assert found.embedding_scale == 2560**0.5
    assert found.eos_ids == (1, 106)
    kinds = ["full_attention" if layer.window is None else "sliding_attention" for layer in found.layers]
    assert kinds == expected.layer_types
    assert found.ropes == (RopeSpec(1e4, 256), RopeSpec(1e6, 256, "linear", 8.0))
    assert found.max_position == 131072


def test_another_language_model_inside_is_refused(tmp_path: Path) -> None:
    """Ministral 3 has the class of Mistral 3, and scales its attention by position."""
    outer = {
        "architectures": ["Mistral3ForConditionalGeneration"],
        "text_config": {**LLAMA_CONFIG, "model_type": "ministral3"},
    }
    with pytest.raises(
        ModelFileError, match="text_config: model_type is 'ministral3'; it must be mistral or"
    ):
        spec(tmp_path, outer)


@pytest.mark.parametrize(
    ("name", "asked", "biases"),
    [
        ("LlamaForCausalLM", True, (True, True)),
        ("LlamaForCausalLM", False, (False, False)),
        ("MistralForCausalLM", True, (False, False)),  # transformers' Mistral has none whatever the key
        ("Qwen2ForCausalLM", False, (True, False)),
        ("Qwen3ForCausalLM", True, (True, True)),
        ("Qwen3ForCausalLM", False, (False, False)),
    ],
)
def test_attention_has_the_biases_of_its_family(
    tmp_path: Path, name: str, asked: bool, biases: tuple[bool, bool]
) -> None:
    layer = spec(tmp_path, {"architectures": [name], "attention_bias": asked}).layers[0]
    assert (layer.qkv_bias, layer.out_bias) == biases


def test_without_architectures_the_model_type_decides(tmp_path: Path) -> None:
    assert (
        spec(tmp_path, {"architectures": ..., "model_type": "mistral", "sliding_window": 8}).layers[0].window
        == 8
    )


@pytest.mark.parametrize(
    ("config", "expected"),
    [
        ({"rope_theta": 5e5}, RopeSpec(5e5, HEAD_DIM)),
        ({"rope_theta": 1000000}, RopeSpec(1e6, HEAD_DIM)),
        ({"rope_scaling": None}, RopeSpec(1e4, HEAD_DIM)),
        ({"rope_scaling": {"type": "linear", "factor": 2}}, RopeSpec(1e4, HEAD_DIM, "linear", 2.0)),
        (
            {"rope_scaling": {"rope_type": "llama3", **LLAMA3}},
            RopeSpec(1e4, HEAD_DIM, "llama3", 8.0, 1.0, 4.0, 64),
        ),
        (
            {"rope_theta": ..., "rope_parameters": {"rope_type": "default", "rope_theta": 5e5}},
            RopeSpec(5e5, HEAD_DIM),
        ),
    ],
)
def test_old_and_new_spellings_of_rope_are_read(
    tmp_path: Path, config: dict[str, Any], expected: RopeSpec
) -> None:
    assert spec(tmp_path, config).layers[0].rope == expected


def test_biases_follow_the_configuration(tmp_path: Path) -> None:
    layer = spec(tmp_path, {"attention_bias": True, "mlp_bias": True}).layers[0]
    assert (layer.qkv_bias, layer.out_bias, layer.mlp_bias) == (True, True, True)


def test_every_end_of_both_files_stops_those_of_generation_first(tmp_path: Path) -> None:
    generation = {"eos_token_id": [5, 2]}
    assert spec(tmp_path, {"eos_token_id": [2, 9]}, generation_config=generation).eos_ids == (5, 2, 9)


def test_a_model_may_have_no_begin_and_no_end(tmp_path: Path) -> None:
    found = spec(tmp_path, {"bos_token_id": None, "eos_token_id": -1})
    assert (found.bos_id, found.eos_ids) == (None, ())


def test_embeddings_are_tied_where_the_configuration_says_so_or_the_head_is_absent(tmp_path: Path) -> None:
    write_folder(tmp_path)
    assert not read_spec(tmp_path, has_lm_head=True).tied_embeddings
    assert read_spec(tmp_path, has_lm_head=False).tied_embeddings
    write_folder(tmp_path, config={"tie_word_embeddings": True})
    assert read_spec(tmp_path, has_lm_head=True).tied_embeddings


BAD_CONFIGS: dict[str, tuple[dict[str, Any], str]] = {
    "soft cap of scores": (
        {"attn_logit_softcapping": 50.0},
        "attn_logit_softcapping is 50.0; .*not supported",
    ),
    "soft cap of logits": ({"final_logit_softcapping": 30.0}, "final_logit_softcapping is 30.0"),
    "both ways": ({"use_bidirectional_attention": True}, "use_bidirectional_attention is True"),
    "not causal": ({"is_causal": False}, "is_causal is False; it must be true"),
    "epsilon": ({"rms_norm_eps": 1e-320}, "rms_norm_eps is .*it must be a number from 1e-12 to 1"),
    "scores": (
        {"architectures": ["Gemma3TextModel"], "query_pre_attn_scalar": 1e-320},
        "query_pre_attn_scalar is .*it must be a number from 9",
    ),
    "shared experts": ({"n_shared_experts": 2}, "n_shared_experts is 2; it must be absent"),
    "architecture": (
        {"architectures": ["GPTNeoXForCausalLM"]},
        "architecture 'GPTNeoXForCausalLM' is not supported; supported are LlamaForCausalLM, LlamaModel, Mistral",
    ),
    "no architecture": ({"architectures": ..., "model_type": ...}, "architecture '' is not supported"),
    "architectures of numbers": ({"architectures": [3]}, "architectures is .*it must be a list of strings"),
    "activation": ({"hidden_act": "gelu"}, "hidden_act is 'gelu'; it must be silu"),
    "no width": ({"hidden_size": ...}, "hidden_size is missing; it must be an integer from 1"),
    "width of text": ({"hidden_size": "64"}, "hidden_size is '64'"),
    "width of truth": ({"hidden_size": True}, "hidden_size is True"),
    "width of 64.0": ({"hidden_size": 64.0}, "hidden_size is 64.0"),
    "no layers": ({"num_hidden_layers": 0}, "num_hidden_layers is 0"),
    "too many layers": ({"num_hidden_layers": 10**9}, "num_hidden_layers is 1000000000"),
    "odd groups": ({"num_key_value_heads": 3}, "num_key_value_heads is 3; it must be a divisor"),
    "heads that do not divide": ({"num_attention_heads": 6}, "hidden_size 64 is no multiple of 6 heads"),
    "odd heads": ({"head_dim": 15}, "head_dim is 15; it must be even"),
    "rope type": ({"rope_scaling": {"rope_type": "mrope"}}, "rope type 'mrope' is not supported; .*yarn"),
    "rope scaling of text": ({"rope_scaling": "linear"}, "rope_scaling is 'linear'; it must be a mapping"),
    "rope factor": ({"rope_scaling": {"type": "linear"}}, "rope_scaling: factor is missing"),
    "llama3 without bounds": (
        {"rope_scaling": {"rope_type": "llama3", "factor": 8}},
        "low_freq_factor is missing",
    ),
    "llama3 bounds": (
        {"rope_scaling": {"rope_type": "llama3", **LLAMA3, "low_freq_factor": 4.0}},
        "low_freq_factor is 4.0; it must be below high_freq_factor, 4.0",
    ),
    "part of a rotation": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
    "theta": ({"rope_theta": -1.0}, "rope_theta is -1.0; it must be a number from 1 to 1e.300"),
    "theta no float can hold": ({"rope_theta": 10**400}, "rope_theta is 1000.*a number from 1 to 1e.300"),
    "end of text": ({"eos_token_id": "</s>"}, "eos_token_id is '</s>'; it must be token ids below 40"),
    "end beyond the vocabulary": ({"eos_token_id": [1, VOCAB]}, "token ids below 40"),
    "tied by text": (
        {"tie_word_embeddings": "yes"},
        "tie_word_embeddings is 'yes'; it must be true or false",
    ),
    "window": ({**MISTRAL, "sliding_window": 0}, "sliding_window is 0"),
}


@pytest.mark.parametrize("name", BAD_CONFIGS)
def test_a_configuration_that_cannot_be_used_is_refused_by_key(name: str, tmp_path: Path) -> None:
    config, message = BAD_CONFIGS[name]
    with pytest.raises(ModelFileError, match=f"^config.json.*{message}"):
        spec(tmp_path, config)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "not valid JSON"),
        (b"[]", "a JSON object is needed, not a list"),
        (b"\xff", "not valid JSON"),
        (b'{"a": ' + b"[" * 100_000, "not valid JSON"),
        (b" " * (4 << 20) + b"{}", "4194306 bytes; at most 4194304 are allowed"),
    ],
    ids=["empty", "list", "no UTF-8", "deep", "long"],
)
def test_a_file_that_is_no_small_json_object_is_refused(tmp_path: Path, content: bytes, message: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(ModelFileError, match=f"config.json: {message}"):
        read_spec(tmp_path, has_lm_head=True)


def test_a_broken_generation_config_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"generation_config\.json: eos_token_id is 'x'"):
        spec(tmp_path, generation_config={"eos_token_id": "x"})


def test_the_tensors_asked_for_are_those_transformers_saves(tmp_path: Path) -> None:
    for kind, biased in (("Llama", True), ("Llama", False), ("Mistral", False)):
        sizes = {
            "hidden_size": 64,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "vocab_size": 50,
        }
        bias = {"attention_bias": True, "mlp_bias": True} if biased else {}
        config = getattr(transformers, f"{kind}Config")(**sizes, **bias)
        model = getattr(transformers, f"{kind}ForCausalLM")(config)
        folder = tmp_path / f"{kind}{biased}"
        model.save_pretrained(folder)
        source = open_model(folder)
        saved = {name: tuple(values.shape) for name, values in model.state_dict().items()}
        assert {tensor.name: tensor.shape for tensor in source.spec.tensors()} == saved
        assert {name: info.shape for name, info in source.weights.tensors.items()} == saved
        source.weights.close()


@pytest.mark.parametrize("name", ["Llama", "Mistral", "Qwen2", "Qwen3", "Gemma3Text"])
def test_a_model_saved_without_its_head_is_read(tmp_path: Path, name: str) -> None:
    sizes = {
        "hidden_size": 64,
        "intermediate_size": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 50,
        "bos_token_id": None,
        "eos_token_id": None,
        "pad_token_id": None,
    }
    model = getattr(transformers, f"{name}Model")(getattr(transformers, f"{name}Config")(**sizes))
    model.save_pretrained(tmp_path)
    source = open_model(tmp_path)
    saved = {f"model.{name}": tuple(values.shape) for name, values in model.state_dict().items()}
    assert {name: info.shape for name, info in source.weights.tensors.items()} == saved
    assert source.spec.tied_embeddings
    source.weights.close()


def test_a_bias_the_configuration_asks_for_must_be_there(tmp_path: Path) -> None:
    write_folder(tmp_path, hf_tensors(), {"attention_bias": True})
    with pytest.raises(
        ModelFileError, match=r"model\.layers\.0\.self_attn\.q_proj\.bias and 7 more is missing"
    ):
        open_model(tmp_path)
    write_folder(tmp_path, hf_tensors(bias=True), {"attention_bias": True})
    source = open_model(tmp_path)
    assert "model.layers.1.self_attn.o_proj.bias" in source.weights.tensors
    source.weights.close()
