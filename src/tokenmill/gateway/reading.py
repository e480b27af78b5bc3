"""One choice's text as the parts of a chat message: thoughts, content, calls."""

from __future__ import annotations

from dataclasses import dataclass

from tokenmill.core.delta import Delta, FinishReason
from tokenmill.gateway.reasoning import Thinking, ThoughtSplitter
from tokenmill.gateway.tools.parser import Content, Event, ToolCallParser


@dataclass(frozen=True)
class Thought:
    """Text of the model's thinking."""

    text: str


Part = Thought | Event


class ChoiceReader:
    """Reads the deltas of one choice.

    Attributes:
        reasoning_tokens: tokens up to the end of the thoughts, counted where one token marks it.
    """

    def __init__(self, thinking: Thinking | None, calls: ToolCallParser | None) -> None:
        self.reasoning_tokens = 0
        self._splitter = ThoughtSplitter(thinking.begun) if thinking else None
        self._close_id = thinking.close_id if thinking else None
        self._counting = self._close_id is not None
        self._tokens = 0
        self._calls = calls

    def read(self, delta: Delta) -> list[Part]:
        """The parts that the delta adds; with the last delta, all that was held."""
        ended = delta.finish_reason is not None
        if self._splitter is None:
            return self._answer(delta.text, ended)
        thoughts, text = self._splitter.feed(delta.text)
        if ended:
            more_thoughts, more_text = self._splitter.finish()
            thoughts, text = thoughts + more_thoughts, text + more_text
        self._count(delta, self._splitter.thought)
        return [*([Thought(thoughts)] if thoughts else []), *self._answer(text, ended)]

    def finish_reason(self, reason: FinishReason) -> FinishReason:
        """An answer that ends by itself after a call ends for the call's sake.

        A stop string inside a call cuts it as a bound does, and a client must not run what is left of it.
        """
        if self._calls is None or reason != "stop":
            return reason
        if self._calls.cut:
            return "length"
        return "tool_calls" if self._calls.calls else "stop"

    def _answer(self, text: str, ended: bool) -> list[Part]:
        if self._calls is None:
            return [Content(text)] if text else []
        return [*self._calls.feed(text), *(self._calls.finish() if ended else [])]

    def _count(self, delta: Delta, thought: bool) -> None:
        if not self._counting:
            return
        if self._close_id is not None and self._close_id in delta.token_ids:
            self._counting = False
            self._tokens += delta.token_ids.index(self._close_id) + 1
        else:
            self._tokens += len(delta.token_ids)
        self.reasoning_tokens = self._tokens if thought else 0
