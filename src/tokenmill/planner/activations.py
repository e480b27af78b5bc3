"""What one step of the reference path holds at its widest, and the tables it keeps. All figures are bytes.

The terms follow `kernels.reference`, `kernels.paged_attention`, `kernels.experts` and `engine.sampler`: each
adds up the tensors that are alive at the widest moment of one of them.
"""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.models.spec import ExpertsSpec, LayerSpec, ModelSpec
from tokenmill.planner.products import filled_rows

# Query rows of attention are filled up to a multiple of this.
ROWS = 8
# Query rows attention handles at once.
ATTENTION_ROWS = 128
# KV positions gathered at once for sequences that decode together.
ATTENTION_TOKENS = 8192
# Parts of a context that attention pads to, in tokens.
ATTENTION_SPAN = 512
# Prompt positions a step reads the logits of at most, over all sequences.
PROMPT_LOGIT_ROWS = 64
_FLOAT, _LONG = 4, 8


@dataclass(frozen=True)
class StepBounds:
    """The largest step.

    Attributes:
        tokens: of all sequences together.
        sequences: that run together.
        context: longest sequence, in tokens.
        matrix_bytes: of a number in the type products are computed in.
        kv_bytes: of a number in the KV cache.
    """

    tokens: int
    sequences: int
    context: int
    matrix_bytes: int
    kv_bytes: int

    @property
    def rows(self) -> int:
        """Of a step's products, padding included."""
        return filled_rows(self.tokens)

    @property
    def decoding(self) -> int:
        """Sequences that compute a single token."""
        return min(self.sequences, self.tokens)

    @property
    def prompt_logits(self) -> int:
        """Prompt positions whose logits are read."""
        return min(self.tokens, PROMPT_LOGIT_ROWS)

    @property
    def logits(self) -> int:
        """Rows whose logits are computed together."""
        return self.decoding + self.prompt_logits

    @property
    def span(self) -> int:
        """Longest context as attention pads it."""
        return -(-self.context // ATTENTION_SPAN) * ATTENTION_SPAN


def activation_bytes(spec: ModelSpec, step: StepBounds) -> int:
    """The wider of: the layers, and the logits with the sampler's copies; and half of the other.

    Freed memory stays with the process, and what one leaves is only in part of use to the other: their
    blocks differ in size.
    """
    kinds = set(spec.layers)
    layers = _masks(kinds, step) + max(
        max(_attention(layer, step), _feed_forward(layer, spec.hidden, step)) for layer in kinds
    )
    logits = logit_bytes(spec.vocab_size, step)
    return _stream(spec, step) + max(layers, logits) + min(layers, logits) // 2


def table_bytes(spec: ModelSpec, positions: int) -> int:
    """Cosines and sines of every distinct rotary embedding."""
    return sum(2 * positions * (rope.dim // 2) * _FLOAT for rope in spec.ropes)


def _stream(spec: ModelSpec, step: StepBounds) -> int:
    """The residual stream, a branch as computed and as float, its norm in two steps; angles of the rows."""
    angles = sum(rope.dim for rope in spec.ropes) * _FLOAT
    return step.rows * (spec.hidden * (4 * _FLOAT + step.matrix_bytes) + angles)


def _attention(layer: LayerSpec, step: StepBounds) -> int:
    dim, heads = layer.head_dim, layer.heads
    projected = step.rows * (heads + 2 * layer.kv_heads) * dim * step.matrix_bytes
    rotated = step.rows * (heads + layer.kv_heads) * dim * _FLOAT
    # Queries, scaled, and the results of every head.
    queries = 2 * step.rows * heads * dim * _FLOAT
    # Rotating holds what is rotated, its turned halves and the whole.
    return projected + max(3 * rotated, rotated + queries + _group(layer, step))


def _group(layer: LayerSpec, step: StepBounds) -> int:
    """The widest of what is computed together: a run of queries, sequences that decode, a mask being made.

    A window hides positions; it does not keep them from being gathered.
    """
    shared = layer.heads // layer.kv_heads
    row = layer.head_dim * (3 * _FLOAT + 2 * step.kv_bytes)
    position = 2 * layer.kv_heads * layer.head_dim * step.kv_bytes
    run = min(step.rows, ATTENTION_ROWS)
    prefill = run * layer.heads * row + step.span * position
    positions = max(step.span, min(ATTENTION_TOKENS, step.decoding * step.span))
    decode = step.decoding * layer.kv_heads * _filled(shared) * row + positions * position
    mask = step.span * run * (1 + step.kv_bytes * (1 + shared))
    return max(prefill, decode, mask)


def _masks(layers: set[LayerSpec], step: StepBounds) -> int:
    """One for every query row, window and number of heads that share KV."""
    kinds = {(layer.window, layer.heads // layer.kv_heads) for layer in layers}
    prefilling = step.rows - step.decoding
    rows = sum(step.decoding * _filled(shared) + prefilling * shared for _, shared in kinds)
    return step.span * rows * step.kv_bytes


def _feed_forward(layer: LayerSpec, hidden: int, step: StepBounds) -> int:
    """Gate and up side by side, the activated gate, the product; the input in the type of the product."""
    mlp = step.rows * step.matrix_bytes * (4 * layer.intermediate + hidden)
    return mlp if layer.experts is None else mlp + _routing(layer.experts, hidden, step)


def _routing(experts: ExpertsSpec, hidden: int, step: StepBounds) -> int:
    """Beside one expert, which every row may choose: scores and their softmax, choices with their order, the
    rows filled up, the expert's rows before and after, weighted, and the sum of all experts."""
    rows = 6 * hidden * _FLOAT + hidden * step.matrix_bytes
    return step.rows * (2 * experts.count * _FLOAT + experts.active * (_FLOAT + 4 * _LONG) + rows)


def logit_bytes(vocabulary: int, step: StepBounds) -> int:
    """The widest of three moments: logits become float, prompts are scored, tokens are drawn."""
    prompts = step.prompt_logits
    filled = filled_rows(step.logits)
    narrow = step.matrix_bytes < _FLOAT
    # Made float, they are copied without their padding.
    held = (step.logits if narrow else filled) * _FLOAT
    computed = held + (filled * step.matrix_bytes if narrow else 0)
    scored = held + prompts * (_FLOAT + 1)
    # Logits, raw log-probabilities, the rows drawn, scaled, as probabilities, those cut, what is kept of
    # them, ranked; their places, sums, themselves in doubles and taken from the sums; a mask.
    drawn = held + step.decoding * (7 * _FLOAT + 4 * _LONG + 1)
    return vocabulary * max(computed, scored, drawn)


def _filled(rows: int) -> int:
    return -(-rows // ROWS) * ROWS
