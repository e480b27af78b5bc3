"""Gemma 3: as Llama, and each branch is RMS-normed once more before it is added."""

from __future__ import annotations

from tokenmill.engine.models.parts import Parts
from tokenmill.kernels.program import Add, Operator


def layer(parts: Parts, number: int) -> list[Operator]:
    at = f"model.layers.{number}."
    return [
        parts.norm(at + "input_layernorm"),
        parts.attention(number),
        parts.branch_norm(at + "post_attention_layernorm"),
        Add(),
        parts.norm(at + "pre_feedforward_layernorm"),
        parts.feed_forward(number),
        parts.branch_norm(at + "post_feedforward_layernorm"),
        Add(),
    ]
