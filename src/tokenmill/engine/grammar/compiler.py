"""Grammars to matchers, off the event loop and off the engine's thread."""

from __future__ import annotations

import copy
import logging
import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future
from functools import partial
from typing import TYPE_CHECKING

from tokenmill.core.bounds import MAX_GRAMMAR_BYTES
from tokenmill.core.errors import (
    EngineStopped,
    GenerationFailed,
    InvalidRequest,
    Overloaded,
    TokenmillError,
)
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.checked_build import CheckedBuild
from tokenmill.engine.grammar.matcher import Allowance, Matcher
from tokenmill.engine.grammar.messages import ChildLimits
from tokenmill.engine.grammar.vocabulary import TokenTable

if TYPE_CHECKING:
    from llguidance import LLMatcher

log = logging.getLogger(__name__)

# Verdicts that are kept, the least recently used dropped first.
KEPT_VERDICTS = 64
# Grammars, however many requests wait for each.
MAX_PENDING = 64
# After so long without a new grammar the child's memory is given back.
IDLE_S = 300.0

# A request that waits: for how many matchers.
_Waiter = tuple[Future[list[Matcher]], int]


class GrammarCompiler:
    """Compiles one grammar after another, on a thread of its own that starts with the first.

    Requests for a grammar that is being compiled wait for that. What came of it is kept: the compiled
    grammar, or why it is refused. Faults of the machine are not.
    """

    def __init__(
        self,
        table: TokenTable,
        end_ids: Iterable[int],
        *,
        limits: ChildLimits | None = None,
        idle_s: float = IDLE_S,
    ) -> None:
        self._end_ids = tuple(end_ids)
        self._build = CheckedBuild(table, self._end_ids, limits or ChildLimits())
        self._idle_s = idle_s
        self._changed = threading.Condition()
        # In order of arrival. The first may be in work; it then stays until it is done.
        self._waiting: OrderedDict[Grammar, list[_Waiter]] = OrderedDict()
        self._in_work: Grammar | None = None
        self._verdicts: OrderedDict[Grammar, LLMatcher | TokenmillError] = OrderedDict()
        self._closed = False
        self._thread: threading.Thread | None = None

    @property
    def child_pid(self) -> int | None:
        """Process id of the child, while there is one."""
        return self._build.child_pid

    @property
    def pending(self) -> int:
        """Requests that wait for their grammar."""
        with self._changed:
            return sum(map(len, self._waiting.values()))

    def matchers(self, grammar: Grammar, count: int) -> Future[list[Matcher]]:
        """`count` matchers at the beginning of `grammar`, for one request; at once when it is known.

        Cancelling the future leaves the queue. It raises:
            InvalidRequest: the grammar cannot be used.
            Overloaded: too many grammars wait already, or none can be checked now.
            GenerationFailed: a fault of this server.
            EngineStopped: closed.
        """
        done: Future[list[Matcher]] = Future()
        with self._changed:
            outcome = self._known(grammar)
            if outcome is None:
                self._queue(grammar, (done, count))
        if outcome is None:
            done.add_done_callback(partial(self._leave, grammar))
        else:
            self._answer((done, count), outcome)
        return done

    def stop(self) -> None:
        """Fails what waits with EngineStopped and interrupts what is in work; does not wait for it."""
        with self._changed:
            self._closed = True
            waiters = [waiter for group in self._waiting.values() for waiter in group]
            self._waiting.clear()
            self._changed.notify()
        self._build.stop()
        for waiter in waiters:
            self._answer(waiter, EngineStopped("the engine has stopped"))

    def close(self) -> None:
        """Stops, and waits until the thread and the child are gone."""
        self.stop()
        if self._thread is not None:
            self._thread.join()

    def _known(self, grammar: Grammar) -> LLMatcher | TokenmillError | None:
        """What can be said at once; None for a grammar that has to be compiled."""
        if self._closed:
            return EngineStopped("the engine has stopped")
        if grammar in self._verdicts:
            self._verdicts.move_to_end(grammar)
            return self._verdicts[grammar]
        if grammar not in self._waiting and len(self._waiting) >= MAX_PENDING:
            return Overloaded(f"{MAX_PENDING} grammars are waiting to be compiled already")
        return None

    def _queue(self, grammar: Grammar, waiter: _Waiter) -> None:
        self._waiting.setdefault(grammar, []).append(waiter)
        if self._thread is None:
            self._thread = threading.Thread(target=self._work, name="grammar", daemon=True)
            self._thread.start()
        self._changed.notify()

    def _leave(self, grammar: Grammar, done: Future[list[Matcher]]) -> None:
        """Forgets a request that was cancelled, and a grammar that nobody waits for."""
        with self._changed:
            waiters = self._waiting.get(grammar, [])
            waiters[:] = [waiter for waiter in waiters if waiter[0] is not done]
            if not waiters and grammar != self._in_work:
                self._waiting.pop(grammar, None)

    def _work(self) -> None:
        while (grammar := self._next()) is not None:
            try:
                outcome: LLMatcher | TokenmillError = self._build.build(grammar)
            except TokenmillError as error:
                outcome = error
            except BaseException as fault:  # a panic of the library is no Exception
                log.error("a grammar could not be compiled", exc_info=fault)
                outcome = GenerationFailed("this grammar could not be compiled")
            self._settle(grammar, outcome)
        self._build.rest()

    def _next(self) -> Grammar | None:
        """Waits for a grammar; None once closed."""
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._closed or self._waiting, self._idle_s)
                if self._closed:
                    return None
                self._in_work = next(iter(self._waiting), None)
                if self._in_work is not None:
                    return self._in_work
            self._build.rest()

    def _settle(self, grammar: Grammar, outcome: LLMatcher | TokenmillError) -> None:
        with self._changed:
            self._in_work = None
            waiters = self._waiting.pop(grammar, [])
            lasting = isinstance(outcome, InvalidRequest) or not isinstance(outcome, TokenmillError)
            if lasting and len(grammar.source) <= MAX_GRAMMAR_BYTES:
                self._verdicts[grammar] = outcome
                if len(self._verdicts) > KEPT_VERDICTS:
                    self._verdicts.popitem(last=False)
        for waiter in waiters:
            self._answer(waiter, outcome)

    def _answer(self, waiter: _Waiter, outcome: LLMatcher | TokenmillError) -> None:
        done, count = waiter
        if not done.set_running_or_notify_cancel():
            return
        if isinstance(outcome, TokenmillError):
            done.set_exception(copy.copy(outcome))  # each is raised on its own
            return
        allowance = Allowance(count)
        done.set_result([Matcher(outcome.deep_copy(), self._end_ids, allowance) for _ in range(count)])
