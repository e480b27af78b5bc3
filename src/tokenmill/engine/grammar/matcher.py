"""One sequence's place in its grammar."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from tokenmill.core.errors import GenerationFailed

if TYPE_CHECKING:
    from llguidance import LLMatcher

BURST_S = 0.25
PER_STEP_S = 0.005


class GrammarFailed(GenerationFailed):
    """The grammar cannot be followed any further: a limit was hit, or no token fits."""

    code = "grammar_failed"


class Allowance:
    """How much of the engine thread's CPU time one request's grammar may take from the others of a batch.

    All its choices share it: `BURST_S`, and `PER_STEP_S` more a step in which each of them gets a token.

    Args:
        choices: of the request.
        spent: CPU seconds of the calling thread.
    """

    def __init__(self, choices: int, *, spent: Callable[[], float] = time.thread_time) -> None:
        self._per_token_s = PER_STEP_S / choices
        self._spent = spent
        self._left_s = BURST_S

    @property
    def used_up(self) -> bool:
        return self._left_s < 0

    @contextlib.contextmanager
    def charge(self) -> Iterator[None]:
        """Takes what the block spends."""
        began = self._spent()
        yield
        self._left_s -= self._spent() - began

    def earn(self) -> None:
        """Gives what one token of one choice may cost."""
        self._left_s = min(BURST_S, self._left_s + self._per_token_s)


class Matcher:
    """Which tokens may come next. Follows sampled tokens alone, so preemption does not touch it.

    Args:
        state: the library's matcher, owned by this one.
        end_ids: tokens that end a text.
        allowance: shared by all choices of the request.
    """

    def __init__(self, state: LLMatcher, end_ids: Iterable[int], allowance: Allowance) -> None:
        self._state = state
        self._allowance = allowance
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
        with self._allowance.charge():
            self._state.unsafe_compute_mask_ptr(bits.ctypes.data, bits.nbytes)
        self._check()

    def accept(self, token: int) -> None:
        """Takes a sampled token.

        Raises:
            GrammarFailed: as its name says; the matcher is of no use then.
        """
        with self._allowance.charge():
            self._state.consume_token(token)
        self._allowance.earn()
        self._check()

    def _check(self) -> None:
        if self._state.is_error():
            raise GrammarFailed("the grammar became too complex to follow at this point of the text")
        if self._allowance.used_up:
            raise GrammarFailed("the grammar takes too much time a token")
