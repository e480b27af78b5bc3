"""What a row asks of this machine at the least, and how long its memory and its int8 units need for that.

The least an engine does with a model file: reads the file's weights once a decode step and once for all
prompts, reads a KV cache of one byte an element, and multiplies in int8.
"""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.peers.rows import Row
from tokenmill.hardware.peaks import Peaks
from tokenmill.models.source import ModelSource

_NOT_PRODUCTS = ("model.embed_tokens.weight", "lm_head.weight")


@dataclass(frozen=True)
class Work:
    """Bytes that must be read and products that must be added up."""

    bytes: float
    multiply_adds: float

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.multiply_adds + other.multiply_adds)

    def seconds(self, peaks: Peaks) -> float:
        """No engine takes less."""
        return max(
            self.bytes / peaks.read_bytes_per_second,
            self.multiply_adds / peaks.int8_multiply_adds_per_second,
        )


class Model:
    """The sizes of an open model that work depends on."""

    def __init__(self, source: ModelSource) -> None:
        spec = source.spec
        shapes = [(t.name, t.shape) for t in spec.tensors() if len(t.shape) == 2]
        self._body = sum(s[0] * s[1] for name, s in shapes if name not in _NOT_PRODUCTS)
        self._head = spec.vocab_size * spec.hidden
        # A table of embeddings that is no vocabulary product is read a row a token.
        unread = set() if spec.tied_embeddings else {"model.embed_tokens.weight"}
        self._weights = sum(t.nbytes for t in source.weights.tensors.values() if t.name not in unread)
        self._attention = sum(2 * layer.heads * layer.head_dim for layer in spec.layers)
        self._kv = sum(2 * layer.kv_heads * layer.head_dim for layer in spec.layers)

    def prefill(self, row: Row) -> Work:
        """All prompts of one wave and the first token of each answer."""
        pairs = row.streams * row.prompt_tokens * (row.prompt_tokens + 1) // 2
        tokens = row.streams * row.prompt_tokens
        products = self._body * tokens + self._head * row.streams + self._attention * pairs
        return Work(self._weights + self._kv * tokens, products)

    def decode(self, row: Row) -> Work:
        """The tokens after the first of one wave."""
        steps = row.output_tokens - 1
        contexts = row.streams * sum(row.prompt_tokens + step for step in range(1, steps + 1))
        products = (self._body + self._head) * row.streams * steps + self._attention * contexts
        return Work(self._weights * steps + self._kv * contexts, products)


def fractions(row: Row, tokens_per_s: float, model: Model, peaks: Peaks) -> dict[str, float]:
    """Shares of the machine that an engine of `tokens_per_s` uses.

    bandwidth and int8 are the row's least work over what could be done in its time; limit is the least time
    over the time it took, each phase at whichever of the two binds it.
    """
    phases = [model.decode(row)] if row.kind == "decode" else [model.prefill(row), model.decode(row)]
    if row.kind == "prefill":
        tokens = row.streams * row.prompt_tokens
    else:
        tokens = row.streams * (row.output_tokens - (row.kind == "decode"))
    seconds = tokens / tokens_per_s
    whole = sum(phases, Work(0, 0))
    return {
        "bandwidth": whole.bytes / seconds / peaks.read_bytes_per_second,
        "int8": whole.multiply_adds / seconds / peaks.int8_multiply_adds_per_second,
        "limit": sum(phase.seconds(peaks) for phase in phases) / seconds,
    }
