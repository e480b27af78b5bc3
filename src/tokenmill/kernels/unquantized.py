"""A text through the operators of a program in float, some at a time: what packed ones are held against.

No KV cache and no batch: one sequence from its first token, attention over itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import torch
import torch.nn.functional as functional

from tokenmill.kernels.dense import gated, linear, mlp, rms_norm
from tokenmill.kernels.experts import mix
from tokenmill.kernels.program import (
    Add,
    Attention,
    BranchNorm,
    Embed,
    Experts,
    Linear,
    Logits,
    Mlp,
    Norm,
    Operator,
    Rotary,
)
from tokenmill.kernels.reference import normed, rotate
from tokenmill.models.weights import WeightFile

Observe = Callable[[Linear, torch.Tensor], None]


class UnquantizedPass:
    """The registers of one sequence.

    Args:
        token_ids: [tokens].
        rotary: the program's tables.
        load: gives a matrix of the outline in float32.
        observe: told of every product: its weight, loaded, and its input [tokens, columns].
    """

    def __init__(
        self,
        token_ids: torch.Tensor,
        rotary: Sequence[Rotary],
        load: Callable[[Linear], Linear],
        observe: Observe,
    ) -> None:
        self._token_ids = token_ids
        self._rotary = rotary
        self._read = load
        self._observe = observe
        self._x = self._h = torch.empty(0)

    @torch.no_grad()
    def extend(self, operators: Sequence[Operator]) -> torch.Tensor | None:
        """Runs further operators; returns logits, [tokens, vocabulary], once there are some."""
        for operator in operators:
            match operator:
                case Embed(table, scale, source):
                    whole = self._read(Linear(table, sources=(source,)))
                    self._x = functional.embedding(self._token_ids, whole.weight) * scale
                case Norm(weight, eps):
                    self._h = rms_norm(self._x, weight, eps)
                case BranchNorm(weight, eps):
                    self._h = rms_norm(self._h, weight, eps)
                case Attention():
                    self._h = self._attend(operator)
                case Mlp():
                    self._h = mlp(self._h, self._loaded(operator, self._h))
                case Experts(experts=experts):
                    own = tuple(self._loaded(expert, self._h) for expert in experts)
                    self._h = mix(replace(operator, experts=own), self._h)
                case Add():
                    self._x = self._x + self._h
                case Logits(head):
                    return self._product(self._h, head)
        return None

    def _product(self, x: torch.Tensor, op: Linear) -> torch.Tensor:
        own = self._load(op, x)
        return linear(x, own)

    def _load(self, op: Linear, x: torch.Tensor) -> Linear:
        own = self._read(op)
        self._observe(own, x)
        return own

    def _loaded(self, operator: Mlp, x: torch.Tensor) -> Mlp:
        gate_up = self._load(operator.gate_up, x)
        inner = gated(linear(x, gate_up), operator.activation)
        return replace(operator, gate_up=gate_up, down=self._load(operator.down, inner))

    def _attend(self, op: Attention) -> torch.Tensor:
        tokens = len(self._h)
        rotated = op.heads + op.kv_heads
        qkv = self._product(self._h, op.qkv).view(tokens, rotated + op.kv_heads, op.head_dim)
        table = self._rotary[op.rotary]
        angles = Rotary(table.cos[:tokens, None], table.sin[:tokens, None])
        qk = rotate(normed(qkv[:, :rotated], op.norms, op.heads), angles)
        q, k, v = qk[:, : op.heads], qk[:, op.heads :], qkv[:, rotated:]
        distance = torch.arange(tokens)[:, None] - torch.arange(tokens)
        visible = (distance >= 0) & (distance < (op.window or tokens))
        queries, keys, values = (part.transpose(0, 1)[None] for part in (q, k, v))
        out = functional.scaled_dot_product_attention(
            queries, keys, values, attn_mask=visible, scale=op.scale, enable_gqa=True
        )
        return self._product(out[0].transpose(0, 1).reshape(tokens, -1), op.out)


def loader(weights: WeightFile) -> Callable[[Linear], Linear]:
    """Reads the matrices of an outline in float32."""

    def load(op: Linear) -> Linear:
        whole = torch.cat([weights.load(source, torch.float32) for source in op.sources])
        return Linear(whole, None if op.bias is None else op.bias.float(), op.sources)

    return load
