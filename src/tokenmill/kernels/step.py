"""One engine step as flat arrays: all a backend needs to know about a batch."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]


def _none() -> Ints:
    return np.empty(0, dtype=np.int64)


@dataclass(frozen=True)
class Step:
    """Tokens of all scheduled sequences, one after another, without phases.

    Attributes:
        token_ids: [tokens].
        positions: [tokens], position of each token in its sequence.
        slots: [tokens], where its K and V go: block x block size + offset.
        query_starts: [sequences + 1], offsets of each sequence's tokens.
        context_lens: [sequences], tokens of the sequence after this step.
        block_tables: [sequences, blocks], KV blocks in order; unused entries are 0.
        logit_rows: [rows], indices into the tokens whose logits are wanted.
        hidden_rows: [states], indices into the tokens whose final hidden states are wanted.
    """

    token_ids: Ints
    positions: Ints
    slots: Ints
    query_starts: Ints
    context_lens: Ints
    block_tables: Ints
    logit_rows: Ints
    hidden_rows: Ints = field(default_factory=_none)
