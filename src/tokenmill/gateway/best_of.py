"""Of several choices of a prompt, the likeliest ones."""

from __future__ import annotations

import math
from collections.abc import Sequence

from msgspec.structs import replace

from tokenmill.core.delta import Delta


def best(deltas: Sequence[Delta], best_of: int, n: int) -> list[Delta]:
    """The `n` likeliest of each prompt's `best_of` choices, likeliest first and numbered anew.

    A choice is as likely as its tokens are on average (the mean of their log-probabilities); of equals the
    earlier comes first, and what has no tokens to judge comes last.
    """
    if best_of == n:
        return list(deltas)
    found: list[Delta] = []
    for start in range(0, len(deltas), best_of):
        ranked = sorted(deltas[start : start + best_of], key=_mean_logprob, reverse=True)
        found += [replace(delta, index=len(found) + place) for place, delta in enumerate(ranked[:n])]
    return found


def _mean_logprob(delta: Delta) -> float:
    if not delta.logprobs:
        return -math.inf
    return sum(entry.logprob for entry in delta.logprobs) / len(delta.logprobs)
