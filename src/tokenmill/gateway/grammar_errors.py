"""What the engine says of a grammar, told of the request field the grammar was made of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import aclosing
from dataclasses import dataclass

from tokenmill.core.errors import GenerationFailed, InvalidRequest
from tokenmill.core.request import Grammar
from tokenmill.gateway.inbox import Source
from tokenmill.gateway.structured import Form
from tokenmill.gateway.tools.declared import Offer

FAILED = "grammar_failed"

_SUBJECT = re.compile(r"^(?:the|a) (?:JSON schema|regex|Lark grammar|grammar) ")
_PLACE = re.compile(r"(?:at )?(\d+)\(\d+\): (?:failed to compile JSON schema: )?")


@dataclass(frozen=True)
class Blame:
    """The fields behind one request's grammar.

    Attributes:
        grammar: what the engine gets.
        form: what a field of the request asks for, if one does.
        offer: tools the model may call.
    """

    grammar: Grammar
    form: Form | None
    offer: Offer | None = None

    def refused(self, error: InvalidRequest) -> InvalidRequest:
        """The engine's refusal under the field's name, without places in text the client did not write."""
        subject = _SUBJECT.match(error.message)
        if subject is None:
            return error
        reason = error.message[subject.end() :]
        field = self._field()
        own = self.form is not None and self.form.grammar == self.grammar
        if not own and (place := _PLACE.search(reason)) is not None:
            field = self._fields_by_rule().get(self._rule(int(place[1])), field)
            reason = reason[: place.start()] + reason[place.end() :]
        return InvalidRequest(f"{field} {reason}", param=field, code=error.code)

    def failed(self, error: GenerationFailed) -> InvalidRequest:
        """The grammar could not be followed to its end, and would not be a second time."""
        field = self._field()
        return InvalidRequest(f"{field}: {error.message}", param=field, code=FAILED)

    def _field(self) -> str:
        """The field at fault where nothing tells the parts of a grammar apart."""
        if self.offer is None:
            return "response_format" if self.form is None else self.form.field
        parameters = list(self._parameters().values())
        return parameters[0] if len(parameters) == 1 and self.form is None else "tools"

    def _fields_by_rule(self) -> Mapping[str, str]:
        content = {} if self.form is None else dict.fromkeys(("content", "answer"), self.form.field)
        return {**content, **self._parameters()}

    def _parameters(self) -> Mapping[str, str]:
        """The rules of arguments, and the fields of their schemas."""
        if self.offer is None:
            return {}
        numbers = {tool.name: number for number, tool in enumerate(self.offer.tools)}
        return {
            f"arguments_{rule}": f"tools[{numbers[tool.name]}].function.parameters"
            for rule, tool in enumerate(self.offer.callable)
        }

    def _rule(self, line: int) -> str:
        """The rule on a line, counted from 1."""
        lines = self.grammar.source.split("\n")
        return lines[line - 1].partition(":")[0] if 1 <= line <= len(lines) else ""


async def blaming(source: Source, blame: Blame) -> Source:
    """The deltas of a source; raises InvalidRequest with the field where its grammar is at fault."""
    async with aclosing(source) as deltas:
        try:
            async for delta in deltas:
                yield delta
        except InvalidRequest as error:
            raise blame.refused(error) from None
        except GenerationFailed as error:
            if error.code != FAILED:
                raise
            raise blame.failed(error) from None
