"""What a model is: a list of layers, each with its own shape. Everything that counts bytes reads this."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from tokenmill.core.request import Pooling


@dataclass(frozen=True)
class RopeSpec:
    """Rotary position embedding over the first `dim` components of each head.

    The numbers are those of the model's own configuration. Heads are rotated in halves (component i with
    i + dim/2), the layout of Hugging Face checkpoints; components from `dim` on are not rotated.

    Attributes:
        factors: divide the frequency of each pair, [dim / 2] (kinds factors and longrope); GGUF stores llama3
            so. Those of longrope are for contexts up to `original_max_position`.
        long_factors: of longrope, for longer contexts.
        attention_factor: factor on cosines and sines (yarn, longrope).
        beta_fast, beta_slow: turns over the original context between which yarn blends.
    """

    theta: float
    dim: int
    kind: Literal["default", "linear", "dynamic", "yarn", "llama3", "longrope", "factors"] = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position: int = 0
    factors: tuple[float, ...] = ()
    long_factors: tuple[float, ...] = ()
    attention_factor: float = 1.0
    beta_fast: float = 32.0
    beta_slow: float = 1.0
    truncate: bool = True


@dataclass(frozen=True)
class ExpertsSpec:
    """A mixture of experts in place of one MLP: a router picks `active` of `count` for every token.

    Their outputs are weighted by the softmax over all experts; with `renormalize` those chosen sum to 1.
    """

    count: int
    active: int
    renormalize: bool


@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: attention, then a gated MLP, each behind an RMS norm.

    Attributes:
        intermediate: inner width of the MLP, or of each expert.
        scale: factor on the attention scores.
        rope: rotary embedding of its queries and keys.
        window: tokens a position looks back on, itself included; None is the whole context.
        qk_norm: queries and keys are RMS-normed per head before they are rotated.
        post_norms: attention and MLP are RMS-normed once more before they are added (Gemma).
    """

    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    scale: float
    rope: RopeSpec
    window: int | None = None
    qkv_bias: bool = False
    out_bias: bool = False
    mlp_bias: bool = False
    qk_norm: bool = False
    post_norms: bool = False
    activation: Literal["silu", "gelu_tanh"] = "silu"
    experts: ExpertsSpec | None = None


@dataclass(frozen=True)
class TensorShape:
    """A weight by its canonical name, that of Llama and Gemma in Hugging Face layout. Matrices are [out, in].

    Files that name, fuse or stack weights otherwise are mapped to these names when they are opened; norm
    weights are the factors themselves, whatever is stored.
    """

    name: str
    shape: tuple[int, ...]


@dataclass(frozen=True)
class ModelSpec:
    """A whole model.

    Attributes:
        architecture: key of the module in `engine.models` that runs it.
        embedding_scale: factor on the embeddings.
        max_position: longest context it was made for, in tokens, scaled rotary embeddings included.
        eos_ids: every token that ends an answer.
        pooling: how token states become one embedding of a text, where the model is made for that.
    """

    architecture: str
    vocab_size: int
    hidden: int
    layers: tuple[LayerSpec, ...]
    norm_eps: float
    max_position: int
    tied_embeddings: bool = False
    embedding_scale: float = 1.0
    bos_id: int | None = None
    eos_ids: tuple[int, ...] = ()
    pooling: Pooling | None = None

    @property
    def ropes(self) -> tuple[RopeSpec, ...]:
        """The distinct rotary embeddings of its layers, in order of first use."""
        return tuple(dict.fromkeys(layer.rope for layer in self.layers))

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
    if layer.qk_norm:
        yield TensorShape(prefix + "self_attn.q_norm.weight", (layer.head_dim,))
        yield TensorShape(prefix + "self_attn.k_norm.weight", (layer.head_dim,))
    yield TensorShape(prefix + "post_attention_layernorm.weight", (hidden,))
    if layer.post_norms:
        yield TensorShape(prefix + "pre_feedforward_layernorm.weight", (hidden,))
        yield TensorShape(prefix + "post_feedforward_layernorm.weight", (hidden,))
    if layer.experts is None:
        yield from _mlp_tensors(prefix + "mlp.", layer, hidden)
        return
    yield TensorShape(prefix + "mlp.gate.weight", (layer.experts.count, hidden))
    for expert in range(layer.experts.count):
        yield from _mlp_tensors(f"{prefix}mlp.experts.{expert}.", layer, hidden)


def _mlp_tensors(prefix: str, layer: LayerSpec, hidden: int) -> Iterator[TensorShape]:
    for name, shape in (
        ("gate_proj", (layer.intermediate, hidden)),
        ("up_proj", (layer.intermediate, hidden)),
        ("down_proj", (hidden, layer.intermediate)),
    ):
        yield TensorShape(f"{prefix}{name}.weight", shape)
        if layer.mlp_bias:
            yield TensorShape(f"{prefix}{name}.bias", shape[:1])
