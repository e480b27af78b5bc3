"""Names of safetensors to canonical ones: every spelling of a checkpoint gives the same tensors."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import torch

from support.tiny_models import save_tiny
from tokenmill.core.errors import ModelFileError
from tokenmill.models.source import open_model

Tensors = dict[str, torch.Tensor]


def loaded(folder: Path) -> Tensors:
    source = open_model(folder)
    tensors = {name: source.weights.load(name, torch.float32) for name in source.weights.tensors}
    source.weights.close()
    return tensors


def rewrite(folder: Path, change: Callable[[Tensors], Tensors]) -> None:
    path = folder / "model.safetensors"
    safetensors.torch.save_file(change(safetensors.torch.load_file(path)), path)


def assert_same(found: Tensors, expected: Tensors) -> None:
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert torch.equal(found[name], values), name


def prefixed(prefix: str) -> Callable[[Tensors], Tensors]:
    return lambda tensors: {prefix + name: values.clone() for name, values in tensors.items()}


def without_prefix(tensors: Tensors) -> Tensors:
    return {name.removeprefix("model."): values for name, values in tensors.items()}


def moved(tensors: Tensors) -> Tensors:
    """As a model that also sees pictures was saved for a while."""
    return {name.replace("model.", "model.language_model.", 1): values for name, values in tensors.items()}


def stacked(tensors: Tensors) -> Tensors:
    """Experts as transformers 5 holds them in memory."""
    kept = {name: values for name, values in tensors.items() if ".experts." not in name}
    for layer in range(3):
        at = f"model.layers.{layer}.mlp.experts."
        gate, up, down = (
            torch.stack([tensors[f"{at}{expert}.{name}_proj.weight"] for expert in range(6)])
            for name in ("gate", "up", "down")
        )
        kept |= {at + "gate_up_proj": torch.cat((gate, up), dim=1).contiguous(), at + "down_proj": down}
    return kept


@pytest.mark.parametrize(
    ("kind", "change"),
    [
        ("llama", prefixed("language_model.")),
        ("llama", moved),
        ("qwen3", without_prefix),
        ("qwen3_moe", stacked),
    ],
    ids=["wrapped", "moved", "saved without a head", "stacked experts"],
)
def test_every_spelling_gives_the_same_tensors(
    kind: str, change: Callable[[Tensors], Tensors], tmp_path: Path
) -> None:
    save_tiny(kind, tmp_path)
    expected = loaded(tmp_path)
    rewrite(tmp_path, change)
    assert_same(loaded(tmp_path), expected)


def test_fused_tensors_are_cut_in_order(tmp_path: Path) -> None:
    model = save_tiny("phi3", tmp_path)
    found, layer = loaded(tmp_path), model.model.layers[1]
    at = "model.layers.1."
    qkv = [found[f"{at}self_attn.{name}_proj.weight"] for name in ("q", "k", "v")]
    assert [len(part) for part in qkv] == [96, 32, 32]  # 6, 2 and 2 heads of 16
    assert torch.equal(torch.cat(qkv), layer.self_attn.qkv_proj.weight)
    gate_up = [found[f"{at}mlp.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(torch.cat(gate_up), layer.mlp.gate_up_proj.weight)


def test_experts_of_mixtral_have_the_common_names(tmp_path: Path) -> None:
    model = save_tiny("mixtral", tmp_path)
    found, moe = loaded(tmp_path), model.model.layers[2].mlp
    at = "model.layers.2.mlp."
    assert torch.equal(found[at + "gate.weight"], moe.gate.weight)
    assert torch.equal(found[at + "experts.4.down_proj.weight"], moe.experts.down_proj[4])
    gate_up = [found[f"{at}experts.4.{name}_proj.weight"] for name in ("gate", "up")]
    assert torch.equal(torch.cat(gate_up), moe.experts.gate_up_proj[4])


def test_norms_of_gemma_are_the_factors_themselves(tmp_path: Path) -> None:
    model = save_tiny("gemma3", tmp_path)
    found, layer = loaded(tmp_path), model.model.layers[0]
    for name, norm in (
        ("model.norm", model.model.norm),
        ("model.layers.0.self_attn.q_norm", layer.self_attn.q_norm),
        ("model.layers.0.post_feedforward_layernorm", layer.post_feedforward_layernorm),
    ):
        assert torch.equal(found[name + ".weight"], 1 + norm.weight)
    assert torch.equal(found["model.embed_tokens.weight"], model.model.embed_tokens.weight)


@pytest.mark.parametrize("shape", [(159, 96), (160, 95), (160, 0), (160,), (0,), (), (2, 80, 96)])
@pytest.mark.parametrize("dtype", [torch.float32, torch.int64])
def test_a_fused_tensor_of_another_shape_is_refused(
    tmp_path: Path, shape: tuple[int, ...], dtype: torch.dtype
) -> None:
    name = "model.layers.1.self_attn.qkv_proj.weight"
    save_tiny("phi3", tmp_path)
    rewrite(tmp_path, lambda tensors: {**tensors, name: torch.zeros(shape, dtype=dtype)})
    found = re.escape(str(list(shape)))
    with pytest.raises(
        ModelFileError, match=rf"{name} has shape {found}, the configuration asks for \[160, 96\]"
    ):
        open_model(tmp_path)


def test_stacked_experts_the_other_way_round_are_refused(tmp_path: Path) -> None:
    save_tiny("qwen3_moe", tmp_path)
    name = "model.layers.0.mlp.experts.gate_up_proj"

    def turned(tensors: Tensors) -> Tensors:
        tensors = stacked(tensors)
        return {**tensors, name: tensors[name].transpose(1, 2).contiguous()}

    rewrite(tmp_path, turned)
    with pytest.raises(ModelFileError, match=rf"{name} has shape .*the configuration asks for \[6, 80, "):
        open_model(tmp_path)


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    rewrite(tmp_path, lambda tensors: {**tensors, "norm.weight": torch.ones(48)})
    with pytest.raises(ModelFileError, match=r"two tensors are called model\.norm\.weight, one of them as"):
        open_model(tmp_path)
