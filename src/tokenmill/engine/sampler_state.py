"""What sampling keeps of one sequence, in the form a step needs it: nothing is rebuilt every token."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import torch
from numpy.typing import NDArray

from tokenmill.core.request import SamplingParams
from tokenmill.engine.grammar.matcher import Matcher


class SamplerState:
    """One sequence's parameters, its random stream, and the tokens its penalties count.

    Attributes:
        seed: the request's, or one drawn for it.
        bias_ids, bias_values: `logit_bias`, int64 and float32.
        forbidden_until_min: tokens that may not come before `min_tokens` outputs, int64.
        output_len: tokens sampled so far.
        matcher: the sequence's place in its grammar, None for free text.
    """

    def __init__(
        self,
        params: SamplingParams,
        seed: int,
        choice: int,
        *,
        prompt: Iterable[int] = (),
        forbidden_until_min: Iterable[int] = (),
        matcher: Matcher | None = None,
    ) -> None:
        self.params = params
        self.seed = seed
        self.choice = choice
        self.output_len = 0
        self.matcher = matcher
        self.bias_ids = torch.tensor(list(params.logit_bias), dtype=torch.int64)
        self.bias_values = torch.tensor(list(params.logit_bias.values()), dtype=torch.float32)
        self.forbidden_until_min = torch.tensor(sorted(set(forbidden_until_min)), dtype=torch.int64)
        repeats = params.repetition_penalty != 1
        self.penalized = repeats or bool(params.presence_penalty or params.frequency_penalty)
        distinct = sorted(set(prompt)) if repeats else []
        self._place = {token: place for place, token in enumerate(distinct)}
        self._ids = np.array(distinct, dtype=np.int64)
        self._counts = np.zeros(len(distinct), dtype=np.float32)

    @property
    def complete(self) -> bool:
        """Whether the grammar has come to its end: no token can follow."""
        return self.matcher is not None and self.matcher.complete

    def avoided(self) -> NDArray[np.int64]:
        """Tokens a grammar's sequence takes only where the grammar leaves nothing else."""
        early = self.output_len < self.params.min_tokens
        ids = self.forbidden_until_min.numpy()[: None if early else 0]
        if self.matcher is not None and self.params.ignore_eos:
            ids = np.concatenate((ids, self.matcher.end_ids))
        return ids

    def observe(self, token: int) -> None:
        """Counts a sampled token.

        Raises:
            GrammarFailed: the grammar cannot be followed past it.
        """
        self.output_len += 1
        if self.matcher is not None:
            self.matcher.accept(token)
        if not self.penalized:
            return
        place = self._place.setdefault(token, len(self._place))
        if place == len(self._ids):
            grown = max(16, 2 * place)
            self._ids = np.concatenate((self._ids, np.zeros(grown - place, dtype=np.int64)))
            self._counts = np.concatenate((self._counts, np.zeros(grown - place, dtype=np.float32)))
        self._ids[place] = token
        self._counts[place] += 1

    def seen(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Distinct tokens the penalties are about, and how often each came out; views, not copies."""
        size = len(self._place)
        return torch.from_numpy(self._ids[:size]), torch.from_numpy(self._counts[:size])
