"""Llama and what computes like it (Mistral, Qwen2, Qwen3, Phi-3, Mixtral, Qwen3-MoE): attention, then a gated
MLP or experts, each behind an RMS norm. Biases, head norms, windows and the like are in each `LayerSpec`."""

from __future__ import annotations

from tokenmill.engine.models.parts import Parts
from tokenmill.kernels.program import Add, Operator


def layer(parts: Parts, number: int) -> list[Operator]:
    at = f"model.layers.{number}."
    return [
        parts.norm(at + "input_layernorm"),
        parts.attention(number),
        Add(),
        parts.norm(at + "post_attention_layernorm"),
        parts.feed_forward(number),
        Add(),
    ]
