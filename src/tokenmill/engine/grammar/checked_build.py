"""From a grammar to a compiled one: checked for size, in a process of its own, and then here."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from tokenmill.core import bounds
from tokenmill.core.errors import EngineStopped, InvalidRequest
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.checker import Checker
from tokenmill.engine.grammar.messages import ChildLimits
from tokenmill.engine.grammar.vocabulary import TokenTable, build_tokenizer, grammar_vocabulary

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class CheckedBuild:
    """Prepares the vocabulary with the first grammar. Not thread safe, `stop` and `child_pid` excepted."""

    def __init__(self, table: TokenTable, end_ids: Iterable[int], limits: ChildLimits) -> None:
        self._table = table
        self._end_ids = tuple(end_ids)
        self._limits = limits
        self._tokenizer: LLTokenizer | None = None
        self._checker: Checker | None = None
        self._stopped = False

    @property
    def child_pid(self) -> int | None:
        """Process id of the child, while there is one."""
        checker = self._checker
        return None if checker is None else checker.pid

    def build(self, grammar: Grammar) -> LLMatcher:
        """The library's matcher before its first token.

        Raises:
            InvalidRequest: the grammar cannot be used.
            Overloaded: nothing can be checked now.
            EngineStopped: stopped.
        """
        bounds.grammar(grammar)
        tokenizer, checker = self._prepared()
        if self._stopped:
            raise EngineStopped("the engine has stopped")
        checker.check(grammar)
        from tokenmill.engine.grammar.build import GrammarError, build_matcher

        try:
            return build_matcher(tokenizer, grammar.kind, grammar.source)
        except GrammarError as error:
            raise InvalidRequest(f"the grammar cannot be used: {error}", code="invalid_grammar") from None

    def rest(self) -> None:
        """Ends the child until the next grammar, and waits for it."""
        if self._checker is not None:
            self._checker.rest()

    def stop(self) -> None:
        """Interrupts `build`, from another thread; it raises EngineStopped from then on."""
        self._stopped = True
        if self._checker is not None:
            self._checker.stop()

    def _prepared(self) -> tuple[LLTokenizer, Checker]:
        if self._tokenizer is None or self._checker is None:
            if not self._end_ids:
                raise InvalidRequest("this model has no end token: no grammar works", code="invalid_grammar")
            vocabulary = grammar_vocabulary(self._table, self._end_ids)
            self._tokenizer = build_tokenizer(vocabulary, self._encode)
            self._checker = Checker(vocabulary, self._limits)
        return self._tokenizer, self._checker

    def _encode(self, text: str) -> list[int]:
        return self._table.encode(text, add_special=False)
