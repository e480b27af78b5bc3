"""What a backend takes: its weights, a token of its KV cache, its working memory. All figures are bytes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from tokenmill.core.flags import ModelFlags
from tokenmill.models.formats import nbytes
from tokenmill.models.spec import ModelSpec
from tokenmill.models.tensor_info import TensorInfo
from tokenmill.planner.activations import StepBounds, activation_bytes, logit_bytes
from tokenmill.planner.arena import arena_shape
from tokenmill.planner.kv_cache import KvFormatName, kv_token_bytes
from tokenmill.planner.packed_weights import packed_weight_bytes
from tokenmill.planner.packing import Quantization
from tokenmill.planner.products import compiled_bytes


class Costs(Protocol):
    """Of one backend in one setting."""

    def weights(self, spec: ModelSpec) -> int:
        """All weights as they are held."""
        ...

    def kv_bytes_per_token(self, spec: ModelSpec) -> int:
        """Of all layers together."""
        ...

    def activations(self, spec: ModelSpec, flags: ModelFlags, longest: int) -> int:
        """Working memory of the largest step with sequences of up to `longest` tokens."""
        ...


def weight_bytes(spec: ModelSpec, matrix_format: str) -> int:
    """Bytes of all weights when matrices and biases are held in `matrix_format`, norms and routers in F32."""
    in_float = ("norm.weight", ".mlp.gate.weight")
    return sum(nbytes("F32" if t.name.endswith(in_float) else matrix_format, t.shape) for t in spec.tensors())


def kv_bytes_per_token(spec: ModelSpec, element_bytes: int) -> int:
    """KV cache bytes of one token: 2 x KV heads x head dim x element, summed over the layers."""
    return sum(2 * layer.kv_heads * layer.head_dim * element_bytes for layer in spec.layers)


@dataclass(frozen=True)
class ReferenceCosts:
    """PyTorch operators.

    Attributes:
        matrix_format: format matrices are held in, a key of `models.formats.FORMATS`.
        kv_element_bytes: of a number in the KV cache.
    """

    matrix_format: str
    kv_element_bytes: int

    def weights(self, spec: ModelSpec) -> int:
        return weight_bytes(spec, self.matrix_format)

    def kv_bytes_per_token(self, spec: ModelSpec) -> int:
        return kv_bytes_per_token(spec, self.kv_element_bytes)

    def activations(self, spec: ModelSpec, flags: ModelFlags, longest: int) -> int:
        """A step's own, compiled products, and the block that padding writes to."""
        step = step_bounds(flags, longest, nbytes(self.matrix_format, (1,)), self.kv_element_bytes)
        compiled = compiled_bytes(spec, step.tokens, step.logits) if self.matrix_format == "BF16" else 0
        padding = self.kv_bytes_per_token(spec) * flags.block_size
        return activation_bytes(spec, step) + compiled + padding


@dataclass(frozen=True)
class NativeCosts:
    """The native step program.

    Attributes:
        tensors: of the file, by name.
        quantization: the flag, which says what they are packed into.
        kv_format: of the KV cache.
        threads: that run a step.
    """

    tensors: Mapping[str, TensorInfo]
    quantization: Quantization
    kv_format: KvFormatName
    threads: int

    def weights(self, spec: ModelSpec) -> int:
        return packed_weight_bytes(spec, self.tensors, self.quantization)

    def kv_bytes_per_token(self, spec: ModelSpec) -> int:
        return sum(layer.kv_heads * kv_token_bytes(self.kv_format, layer.head_dim) for layer in spec.layers)

    def activations(self, spec: ModelSpec, flags: ModelFlags, longest: int) -> int:
        """Buffers between operators, and the sampler's."""
        step = step_bounds(flags, longest, 4, 1)
        row_bytes = 2 if self.quantization == "none" else 1
        shape = arena_shape(
            spec,
            step.tokens,
            step.logits,
            row_bytes=row_bytes,
            kv_number_bytes=1 if self.kv_format == "int8" else 2,
            threads=self.threads,
        )
        return shape.nbytes + logit_bytes(spec.vocab_size, step)


def step_bounds(flags: ModelFlags, longest: int, matrix_bytes: int, kv_bytes: int) -> StepBounds:
    """The largest step the flags allow."""
    return StepBounds(
        tokens=flags.max_num_batched_tokens,
        sequences=flags.max_num_seqs,
        context=longest,
        matrix_bytes=matrix_bytes,
        kv_bytes=kv_bytes,
    )
