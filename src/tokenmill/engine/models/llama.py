"""Llama and its like (Mistral, SmolLM): RMS norm, rotary attention with grouped KV heads, gated MLP."""

from __future__ import annotations

import torch

from tokenmill.kernels.program import Add, Attention, Embed, Linear, Logits, Mlp, Norm, Operator, Program
from tokenmill.kernels.rotary import rotary_table
from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.models.weights import WeightFile


def build(spec: ModelSpec, weights: WeightFile, dtype: torch.dtype, positions: int) -> Program:
    """Writes the model as a program, loading one tensor at a time."""
    load = _Loader(weights, dtype)
    embedding = load.matrix("model.embed_tokens.weight")
    operators: list[Operator] = [Embed(embedding)]
    for number, layer in enumerate(spec.layers):
        operators += _layer(load, spec, layer, number)
    operators.append(Norm(load.norm("model.norm.weight"), spec.norm_eps))
    head = embedding if spec.tied_embeddings else load.matrix("lm_head.weight")
    operators.append(Logits(Linear(head)))
    rotary = tuple(rotary_table(rope, positions) for rope in spec.ropes)
    return Program(tuple(operators), rotary, spec.vocab_size)


def _layer(load: _Loader, spec: ModelSpec, layer: LayerSpec, number: int) -> list[Operator]:
    prefix = f"model.layers.{number}."
    attention = Attention(
        layer=number,
        qkv=load.linear(*(f"{prefix}self_attn.{name}_proj" for name in ("q", "k", "v")), bias=layer.qkv_bias),
        out=load.linear(prefix + "self_attn.o_proj", bias=layer.out_bias),
        heads=layer.heads,
        kv_heads=layer.kv_heads,
        head_dim=layer.head_dim,
        scale=layer.scale,
        window=layer.window,
        rotary=spec.ropes.index(layer.rope),
    )
    mlp = Mlp(
        gate_up=load.linear(prefix + "mlp.gate_proj", prefix + "mlp.up_proj", bias=layer.mlp_bias),
        down=load.linear(prefix + "mlp.down_proj", bias=layer.mlp_bias),
    )
    return [
        Norm(load.norm(prefix + "input_layernorm.weight"), spec.norm_eps),
        attention,
        Add(),
        Norm(load.norm(prefix + "post_attention_layernorm.weight"), spec.norm_eps),
        mlp,
        Add(),
    ]


class _Loader:
    """Loads by canonical name: matrices and biases in one type, norms in float32."""

    def __init__(self, weights: WeightFile, dtype: torch.dtype) -> None:
        self._weights = weights
        self._dtype = dtype

    def matrix(self, name: str) -> torch.Tensor:
        return self._weights.load(name, self._dtype)

    def norm(self, name: str) -> torch.Tensor:
        return self._weights.load(name, torch.float32)

    def linear(self, *names: str, bias: bool = False) -> Linear:
        """One product for several matrices with the same input, rows one after another."""
        parts = [self.matrix(name + ".weight") for name in names]
        weight = parts[0] if len(parts) == 1 else torch.cat(parts)
        biases = [self._weights.load(name + ".bias", self._dtype) for name in names] if bias else None
        return Linear(weight, torch.cat(biases) if biases else None)
