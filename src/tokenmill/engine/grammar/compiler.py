"""Grammars to matchers, off the event loop and off the engine's thread."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING

from tokenmill.core import bounds
from tokenmill.core.errors import EngineStopped, InvalidRequest, Overloaded
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.checker import Checker
from tokenmill.engine.grammar.matcher import Matcher
from tokenmill.engine.grammar.vocabulary import TokenTable, build_tokenizer, grammar_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer

CACHED_GRAMMARS = 64
# Grammars that wait for the one being compiled.
MAX_PENDING = 64


class GrammarCompiler:
    """Compiles one grammar after another, first in a process and then on a thread of its own.

    Both start with the first grammar, and the vocabulary is prepared then. Compiled grammars are kept, the
    least recently used dropped first.
    """

    def __init__(self, table: TokenTable, end_ids: Iterable[int]) -> None:
        self._table = table
        self._end_ids = tuple(end_ids)
        self._compiled: OrderedDict[Grammar, LLMatcher] = OrderedDict()
        self._lock = threading.Lock()
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="grammar")
        self._pending = 0
        self._closed = False
        self._refused: OrderedDict[Grammar, InvalidRequest] = OrderedDict()
        self._tools: tuple[LLTokenizer, Checker] | None = None

    @property
    def child_pid(self) -> int | None:
        """Process id of the child, while there is one."""
        return None if self._tools is None else self._tools[1].pid

    @property
    def pending(self) -> int:
        """Requests that wait for their grammar."""
        return self._pending

    def matchers(self, grammar: Grammar, count: int) -> Future[list[Matcher]]:
        """`count` matchers at the beginning of `grammar`; at once when it has been compiled before.

        The future raises InvalidRequest for a grammar that cannot be used. Cancelling it gives the place in
        the queue back.

        Raises:
            Overloaded: too many grammars wait already.
            EngineStopped: closed.
        """
        done: Future[list[Matcher]] = Future()
        found = self._copies(grammar, count)
        if found is not None:
            done.set_result(found)
            return done
        with self._lock:
            if self._closed:
                raise EngineStopped("the engine has stopped")
            if self._pending >= MAX_PENDING:
                raise Overloaded(f"{MAX_PENDING} grammars are waiting to be compiled already")
            self._pending += 1
            job = self._pool.submit(self._compile, grammar, count)
        job.add_done_callback(self._leave)
        return job

    def close(self) -> None:
        """Ends the thread and the process; what waits fails with EngineStopped."""
        with self._lock:
            self._closed = True
            tools = self._tools
        if tools is not None:
            tools[1].close()
        self._pool.shutdown(wait=False)

    def _leave(self, _: Future[list[Matcher]]) -> None:
        with self._lock:
            self._pending -= 1

    def _compile(self, grammar: Grammar, count: int) -> list[Matcher]:
        if self._closed:
            raise EngineStopped("the engine has stopped")
        found = self._copies(grammar, count)
        if found is not None:
            return found
        bounds.grammar(grammar)
        tokenizer, checker = self._prepare()
        self._check(checker, grammar)
        from tokenmill.engine.grammar.build import GrammarError, build_matcher

        try:
            compiled = build_matcher(tokenizer, grammar.kind, grammar.source)
        except GrammarError as error:
            raise InvalidRequest(f"the grammar cannot be used: {error}", code="invalid_grammar") from None
        with self._lock:
            self._compiled[grammar] = compiled
            if len(self._compiled) > CACHED_GRAMMARS:
                self._compiled.popitem(last=False)
            return self._copy(compiled, count)

    def _copies(self, grammar: Grammar, count: int) -> list[Matcher] | None:
        with self._lock:
            compiled = self._compiled.get(grammar)
            if compiled is None:
                return None
            self._compiled.move_to_end(grammar)
            return self._copy(compiled, count)

    def _copy(self, compiled: LLMatcher, count: int) -> list[Matcher]:
        return [Matcher(compiled.deep_copy(), self._end_ids) for _ in range(count)]

    def _check(self, checker: Checker, grammar: Grammar) -> None:
        """Has the child compile it; what the child did not survive is not tried again."""
        refused = self._refused.get(grammar)
        if refused is None:
            try:
                checker.check(grammar)
                return
            except InvalidRequest as refusal:
                refused = self._refused[grammar] = refusal
                if len(self._refused) > CACHED_GRAMMARS:
                    self._refused.popitem(last=False)
        raise InvalidRequest(refused.message, code=refused.code)

    def _prepare(self) -> tuple[LLTokenizer, Checker]:
        if self._tools is None:
            if not self._end_ids:
                raise InvalidRequest("this model has no end token: no grammar works", code="invalid_grammar")
            vocabulary = grammar_vocabulary(self._table, self._end_ids)
            tools = build_tokenizer(vocabulary, self._encode), Checker(vocabulary)
            with self._lock:
                if self._closed:
                    raise EngineStopped("the engine has stopped")
                self._tools = tools
        return self._tools

    def _encode(self, text: str) -> list[int]:
        return self._table.encode(text, add_special=False)
