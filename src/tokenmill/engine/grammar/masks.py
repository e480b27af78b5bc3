"""Grammars on a batch: one mask a row that has one, nothing for the others."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray

from tokenmill.engine.grammar.matcher import GrammarFailed, Matcher


def constrain(
    logits: torch.Tensor, matchers: Mapping[int, Matcher], avoided: Mapping[int, NDArray[np.int64]]
) -> dict[int, GrammarFailed]:
    """Sets to -inf what each row's grammar does not allow.

    Args:
        logits: [rows, vocabulary], float32; changed in place.
        matchers: by row.
        avoided: by row, token ids that are forbidden too as long as the grammar leaves another one.

    Returns:
        Rows whose grammar fails; their logits mean nothing.
    """
    width = logits.shape[-1]
    bits = np.empty((len(matchers), -(-width // 32) * 4), dtype=np.uint8)
    failed: dict[int, GrammarFailed] = {}
    for at, (row, matcher) in enumerate(matchers.items()):
        try:
            matcher.fill(bits[at])
        except GrammarFailed as fault:
            failed[row] = fault
            continue
        allowed = np.unpackbits(bits[at], bitorder="little", count=width).view(np.bool_)
        if len(avoided[row]):
            kept = allowed.copy()
            kept[avoided[row]] = False
            allowed = kept if kept.any() else allowed
        if not allowed.any():
            failed[row] = GrammarFailed("the model has no token that the grammar allows here")
        else:
            logits[row].masked_fill_(torch.from_numpy(~allowed), -math.inf)
    return failed
