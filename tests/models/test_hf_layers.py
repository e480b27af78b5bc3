"""Which layers have a window, and which have experts, as transformers decides it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeForCausalLM, Qwen3MoeMLP

from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import FAMILIES, Family, family_of_class
from tokenmill.models.fields import Fields
from tokenmill.models.hf_layers import experts_of_layers, sliding_layers

MOE = family_of_class("Qwen3MoeForCausalLM", "")


def config(of: Family, keys: dict[str, Any]) -> Fields:
    return Fields("config.json", keys).filled(of.absent, nullable=())


def sliding(name: str, keys: dict[str, Any], count: int = 8) -> tuple[bool, ...]:
    family = family_of_class(name, "")
    return sliding_layers(config(family, keys), family, count)


KINDS = ["full_attention", "sliding_attention"] * 4


@pytest.mark.parametrize(
    ("name", "oracle", "keys"),
    [
        ("Qwen2ForCausalLM", transformers.Qwen2Config, {}),
        ("Qwen2ForCausalLM", transformers.Qwen2Config, {"use_sliding_window": True, "max_window_layers": 3}),
        ("Qwen2ForCausalLM", transformers.Qwen2Config, {"use_sliding_window": True, "max_window_layers": 28}),
        ("Qwen3ForCausalLM", transformers.Qwen3Config, {"use_sliding_window": True, "max_window_layers": 0}),
        ("Qwen3ForCausalLM", transformers.Qwen3Config, {"use_sliding_window": True, "layer_types": KINDS}),
        ("Gemma3ForCausalLM", transformers.Gemma3TextConfig, {}),
        ("Gemma3ForCausalLM", transformers.Gemma3TextConfig, {"sliding_window_pattern": 3}),
        ("Gemma3ForCausalLM", transformers.Gemma3TextConfig, {"layer_types": KINDS}),
    ],
)
def test_layers_slide_where_they_do_in_transformers(name: str, oracle: Any, keys: dict[str, Any]) -> None:
    expected = oracle(num_hidden_layers=8, **keys).layer_types
    assert sliding(name, keys) == tuple(kind == "sliding_attention" for kind in expected)


def test_all_layers_slide_or_none_in_families_without_kinds() -> None:
    assert sliding("MistralForCausalLM", {}) == (True,) * 8
    assert sliding("LlamaForCausalLM", {"layer_types": KINDS}) == (False,) * 8
    assert sliding("Qwen3MoeForCausalLM", {}) == (False,) * 8
    assert sliding("Qwen3MoeForCausalLM", {"use_sliding_window": True}) == (True,) * 8


@pytest.mark.parametrize(
    ("kinds", "message"),
    [
        (
            ["chunked_attention"] * 8,
            "layer_types holds 'chunked_attention'; supported are full_attention and",
        ),
        (["full_attention"] * 7, "layer_types has 7 entries for 8 layers"),
        ("full_attention", "layer_types is 'full_attention'; it must be a list of strings"),
    ],
)
def test_kinds_that_are_not_known_or_not_as_many_are_refused(kinds: Any, message: str) -> None:
    with pytest.raises(ModelFileError, match=f"^config.json: {message}"):
        sliding("Gemma3ForCausalLM", {"layer_types": kinds})


@pytest.mark.parametrize("keys", [{}, {"decoder_sparse_step": 3}, {"mlp_only_layers": [0, 3]}])
def test_layers_have_experts_where_they_do_in_transformers(keys: dict[str, Any]) -> None:
    sizes = {"hidden_size": 8, "intermediate_size": 8, "moe_intermediate_size": 8, "vocab_size": 8}
    heads = {"num_attention_heads": 1, "num_key_value_heads": 1, "head_dim": 8}
    with torch.device("meta"):
        oracle = transformers.Qwen3MoeConfig(num_hidden_layers=6, num_experts=4, **sizes, **heads, **keys)
        layers = Qwen3MoeForCausalLM(oracle).model.layers
    found = experts_of_layers(config(MOE, {"num_experts": 4, "num_experts_per_tok": 2, **keys}), MOE, 6)
    assert [spec is None for spec in found] == [isinstance(layer.mlp, Qwen3MoeMLP) for layer in layers]


@pytest.mark.parametrize("key", ["num_experts", "num_local_experts"])
def test_the_number_of_experts_has_two_names(key: str) -> None:
    spec = experts_of_layers(config(MOE, {key: 16}), MOE, 1)[0]
    assert spec is not None and spec.count == 16


def test_families_without_experts_have_none() -> None:
    for family in FAMILIES:
        if family.experts is None:
            assert experts_of_layers(config(family, {"num_experts": 4}), family, 2) == (None, None)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"num_experts": 0}, "num_experts is 0; it must be an integer from 1 to 1024"),
        ({"num_experts": 4}, "num_experts_per_tok is 8; it must be an integer from 1 to 4"),
        ({"decoder_sparse_step": 0}, "decoder_sparse_step is 0"),
        ({"mlp_only_layers": [True]}, "mlp_only_layers is .*it must be a list of at most 4096 integers"),
        ({"norm_topk_prob": "yes"}, "norm_topk_prob is 'yes'"),
    ],
)
def test_unusable_experts_are_refused_by_key(keys: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelFileError, match=f"^config.json: {message}"):
        experts_of_layers(config(MOE, keys), MOE, 2)


def test_experts_of_all_layers_together_are_bounded() -> None:
    with pytest.raises(ModelFileError, match="num_experts is 100; it must be an integer from 1 to 32"):
        experts_of_layers(config(MOE, {"num_experts": 100}), MOE, 4096)
