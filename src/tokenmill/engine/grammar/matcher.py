"""One sequence's place in its grammar."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import GenerationFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher

# A grammar may hold up the other sequences of a batch for this much of the engine thread's time.
BURST_S = 0.25
PER_TOKEN_S = 0.005


class GrammarFailed(GenerationFailed):
    """The grammar cannot be followed any further: a limit was hit, or no token fits."""

    code = "grammar_failed"


class Matcher:
    """Which tokens may come next. Follows sampled tokens alone, so preemption does not touch it.

    Args:
        state: the library's matcher, owned by this one.
        end_ids: tokens that end a text.
        spent: CPU seconds of the calling thread.
    """

    def __init__(
        self, state: LLMatcher, end_ids: Iterable[int], *, spent: Callable[[], float] = time.thread_time
    ) -> None:
        self._state = state
        self._spent = spent
        self._credit_s = BURST_S
        self.end_ids = np.array(list(end_ids), dtype=np.int64)

    @property
    def complete(self) -> bool:
        """The text matches and nothing can follow it."""
        return self._state.is_stopped()

    def fill(self, bits: NDArray[np.uint8]) -> None:
        """Sets bit t (lowest first) of `bits`, a multiple of four bytes, where token t may come.

        Raises:
            GrammarFailed: as its name says; the matcher is of no use then.
        """
        began = self._spent()
        self._state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._credit_s += PER_TOKEN_S - (self._spent() - began)
        self._check()

    def accept(self, token: int) -> None:
        """Takes a sampled token.

        Raises:
            GrammarFailed: as its name says; the matcher is of no use then.
        """
        began = self._spent()
        self._state.consume_token(token)
        self._credit_s = min(BURST_S, self._credit_s - (self._spent() - began))
        self._check()

    def _check(self) -> None:
        if self._state.is_error():
            raise GrammarFailed("the grammar became too complex to follow at this point of the text")
        if self._credit_s < 0:
            raise GrammarFailed("the grammar takes too much time a token")
