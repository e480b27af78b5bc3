"""What the architectures are put together from: weights by canonical name into operators."""

from __future__ import annotations

from collections.abc import Callable

import torch

from tokenmill.kernels.program import (
    Attention,
    BranchNorm,
    Embed,
    Experts,
    HeadNorms,
    Linear,
    Logits,
    Mlp,
    Norm,
    Operator,
    Program,
)
from tokenmill.kernels.rotary import rotary_table
from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.models.weights import WeightFile

_EMBEDDING, _HEAD = "model.embed_tokens.weight", "lm_head.weight"


class Parts:
    """Operators of one model. Matrices and biases are held in one type, norms and routers in float32.

    Args:
        outline: matrices have a shape alone; whoever runs the program reads them by name.
    """

    def __init__(
        self, spec: ModelSpec, weights: WeightFile, dtype: torch.dtype, *, outline: bool = False
    ) -> None:
        self.spec = spec
        self._weights = weights
        self._dtype = dtype
        self._outline = outline

    def norm(self, name: str) -> Norm:
        return Norm(self._vector(name), self.spec.norm_eps)

    def branch_norm(self, name: str) -> BranchNorm:
        return BranchNorm(self._vector(name), self.spec.norm_eps)

    def attention(self, number: int) -> Attention:
        layer = self.spec.layers[number]
        at = f"model.layers.{number}.self_attn."
        norms = None
        if layer.qk_norm:
            norms = HeadNorms(self._vector(at + "q_norm"), self._vector(at + "k_norm"), self.spec.norm_eps)
        return Attention(
            layer=number,
            qkv=self._linear(*(f"{at}{name}_proj" for name in ("q", "k", "v")), bias=layer.qkv_bias),
            out=self._linear(at + "o_proj", bias=layer.out_bias),
            heads=layer.heads,
            kv_heads=layer.kv_heads,
            head_dim=layer.head_dim,
            scale=layer.scale,
            window=layer.window,
            rotary=self.spec.ropes.index(layer.rope),
            norms=norms,
        )

    def feed_forward(self, number: int) -> Mlp | Experts:
        """The layer's MLP, or its experts."""
        layer = self.spec.layers[number]
        at = f"model.layers.{number}.mlp."
        if layer.experts is None:
            return self._mlp(layer, at)
        router = at + "gate.weight"
        return Experts(
            router=Linear(self._weights.load(router, torch.float32), sources=(router,)),
            experts=tuple(self._mlp(layer, f"{at}experts.{n}.") for n in range(layer.experts.count)),
            active=layer.experts.active,
            renormalize=layer.experts.renormalize,
        )

    def embedding(self) -> Embed:
        """The scale is rounded to the type of the weights, as it was in training."""
        scale = torch.tensor(self.spec.embedding_scale).to(self._dtype).item()
        return Embed(self._matrix(_EMBEDDING), scale, _EMBEDDING)

    def head(self, embedding: Embed) -> Logits:
        if self.spec.tied_embeddings:
            return Logits(Linear(embedding.table, sources=(_EMBEDDING,)))
        return Logits(Linear(self._matrix(_HEAD), sources=(_HEAD,)))

    def _mlp(self, layer: LayerSpec, at: str) -> Mlp:
        return Mlp(
            gate_up=self._linear(at + "gate_proj", at + "up_proj", bias=layer.mlp_bias),
            down=self._linear(at + "down_proj", bias=layer.mlp_bias),
            activation=layer.activation,
        )

    def _linear(self, *names: str, bias: bool = False) -> Linear:
        """One product for several matrices with the same input, rows one after another."""
        sources = tuple(name + ".weight" for name in names)
        biases = [self._weights.load(name + ".bias", self._dtype) for name in names] if bias else None
        return Linear(self._matrix(*sources), torch.cat(biases) if biases else None, sources)

    def _matrix(self, *sources: str) -> torch.Tensor:
        """Stored matrices, rows one after another."""
        if self._outline:
            shapes = [self._weights.tensors[source].shape for source in sources]
            whole = (sum(shape[0] for shape in shapes), shapes[0][1])
            return torch.zeros((), dtype=self._dtype).expand(whole)
        parts = [self._weights.load(source, self._dtype) for source in sources]
        return parts[0] if len(parts) == 1 else torch.cat(parts)

    def _vector(self, name: str) -> torch.Tensor:
        return self._weights.load(name + ".weight", torch.float32)


def decoder(parts: Parts, positions: int, layer: Callable[[Parts, int], list[Operator]]) -> Program:
    """Embedding, the layers, a norm, the output head: what every decoder is.

    Args:
        positions: length of the rotary tables, in tokens.
        layer: writes the layer of a number.
    """
    spec = parts.spec
    embedding = parts.embedding()
    operators: list[Operator] = [embedding]
    for number in range(len(spec.layers)):
        operators += layer(parts, number)
    operators += [parts.norm("model.norm"), parts.head(embedding)]
    return Program(tuple(operators), tuple(rotary_table(r, positions) for r in spec.ropes), spec.vocab_size)
