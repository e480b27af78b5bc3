"""What the answers of one chat request may look like, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from msgspec.structs import replace

from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import Grammar, SamplingParams
from tokenmill.gateway.reading import ChoiceReader
from tokenmill.gateway.reasoning import CLOSE, OPEN, Thinking, after_thoughts
from tokenmill.gateway.structured import Form
from tokenmill.gateway.tools.declared import Offer
from tokenmill.gateway.tools.grammar import call_grammar
from tokenmill.gateway.tools.parser import ToolCallParser
from tokenmill.gateway.tools.syntax import Syntax


def check_form(offer: Offer | None, asked: Form | None) -> None:
    """Refuses a request whose answer cannot be both a call and of the form it asks for."""
    if offer is None or asked is None:
        return
    if offer.mode == "required":
        raise InvalidRequest(
            "tool_choice asks for a call and another field for another form of the answer; send one of them",
            param="tool_choice",
        )
    if asked.grammar.kind != "json_schema":
        raise InvalidRequest(
            "tools and a regex, choice or grammar for the whole answer exclude each other; send one of them",
            param="tools",
        )


@dataclass(frozen=True)
class AnswerForm:
    """The form of a request's answers.

    Attributes:
        grammar: what the client asked for, by schema, regex or grammar.
        special_tokens: name -> id of this tokenizer.
    """

    offer: Offer | None
    syntax: Syntax
    thinking: Thinking | None
    grammar: Grammar | None
    special_tokens: Mapping[str, int]

    def constrain(self, sampling: SamplingParams) -> SamplingParams:
        """The sampling parameters with the grammar of the whole output, and the marks that must be seen."""
        grammar = self.grammar
        if self.offer is not None:
            content_schema = grammar.source if grammar else None
            grammar = call_grammar(self.offer, self.syntax, self.special_tokens, content_schema)
        if grammar is not None and (thinking := self._thinking()) is not None:
            grammar = after_thoughts(grammar, thinking, self.special_tokens)
        return replace(sampling, grammar=grammar, visible_ids=self._visible_ids())

    def reader(self) -> ChoiceReader:
        """A reader for one choice."""
        calls = None
        if self.offer is not None:
            names = [tool.name for tool in self.offer.callable]
            calls = ToolCallParser(self.syntax, names, required=self.offer.mode == "required")
        return ChoiceReader(self._thinking(), calls)

    def _thinking(self) -> Thinking | None:
        """A regex or a grammar of the client's is for all of the output and leaves no room for thoughts."""
        own = self.offer is None and self.grammar is not None and self.grammar.kind != "json_schema"
        return None if own else self.thinking

    def _visible_ids(self) -> tuple[int, ...]:
        marks = [*(self.syntax.markers if self.offer else ()), *((OPEN, CLOSE) if self.thinking else ())]
        return tuple(self.special_tokens[mark] for mark in marks if mark in self.special_tokens)
