"""What a model is: a list of layers, each with its own shape. Everything that counts bytes reads this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding over the first `dim` components of each head.

    `kind` is default, linear, llama3 or factors; the numbers are those of the model's own configuration.
    `factors` (of kind factors) divide the frequency of each pair, [dim / 2]; GGUF stores llama3 so.
    Heads are rotated in halves (component i with i + dim/2), the layout of Hugging Face checkpoints.
    """

    theta: float
    dim: int
    kind: Literal["default", "linear", "llama3", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    factors: tuple[float, ...] = ()


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: attention, then a gated MLP, each behind an RMS norm.

    Attributes:
        window: tokens a position looks back on, itself included; None is the whole context.
        scale: factor on the attention scores.
    """

    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    scale: float
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    activation: Literal["silu"] = "silu"


@dataclass(frozen=True)
class TensorShape:
    """A weight by its canonical (Hugging Face) name. Matrices are [out, in]."""

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """A whole model.

    Attributes:
        architecture: key of the module in `engine.models` that runs it.
        max_position: longest context it was trained for, in tokens.
        eos_ids: every token that ends an answer.
    """

    architecture: str
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    rope: RopeSpec
    max_position: int
    tied_embeddings: bool = False
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()

    def tensors(self) -> Iterator[TensorShape]:
        """Every weight the model needs, in the order they are used."""
        yield TensorShape("model.embed_tokens.weight", (self.vocab_size, self.hidden))
        for number, layer in enumerate(self.layers):
            yield from _layer_tensors(f"model.layers.{number}.", layer, self.hidden)
        yield TensorShape("model.norm.weight", (self.hidden,))
        if not self.tied_embeddings:
            yield TensorShape("lm_head.weight", (self.vocab_size, self.hidden))


def _layer_tensors(prefix: str, layer: LayerSpec, hidden: int) -> Iterator[TensorShape]:
    q, kv = layer.heads * layer.head_dim, layer.kv_heads * layer.head_dim
    yield TensorShape(prefix + "input_layernorm.weight", (hidden,))
    for name, rows in (("q_proj", q), ("k_proj", kv), ("v_proj", kv)):
        yield TensorShape(f"{prefix}self_attn.{name}.weight", (rows, hidden))
        if layer.qkv_bias:
            yield TensorShape(f"{prefix}self_attn.{name}.bias", (rows,))
    yield TensorShape(prefix + "self_attn.o_proj.weight", (hidden, q))
    if layer.out_bias:
        yield TensorShape(prefix + "self_attn.o_proj.bias", (hidden,))
    yield TensorShape(prefix + "post_attention_layernorm.weight", (hidden,))
    for name, shape in (
        ("gate_proj", (layer.intermediate, hidden)),
        ("up_proj", (layer.intermediate, hidden)),
        ("down_proj", (hidden, layer.intermediate)),
    ):
        yield TensorShape(f"{prefix}mlp.{name}.weight", shape)
        if layer.mlp_bias:
            yield TensorShape(f"{prefix}mlp.{name}.bias", shape[:1])
