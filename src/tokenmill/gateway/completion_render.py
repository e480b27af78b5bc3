"""How an answer of /v1/completions is written, whole or as chunks."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from msgspec import UNSET, UnsetType

from tokenmill.core.delta import Delta, TokenLogprob
from tokenmill.gateway import sse
from tokenmill.gateway.best_of import best
from tokenmill.gateway.openai_types import (
    CompletionLogprobs,
    Head,
    TextChoice,
    TextCompletion,
    UsageObject,
    UsageSum,
    clamp,
    prompt_logprobs,
)
from tokenmill.gateway.served import TextCodec


@dataclass(frozen=True)
class Asked:
    """What the answer shows.

    Attributes:
        best_of: choices a prompt that are generated; the `n` likeliest are shown.
        logprobs: alternatives a position, None for no log-probabilities.
        prompt_logprobs: the same for the prompt's own list.
    """

    n: int
    best_of: int
    echo: bool
    logprobs: int | None
    prompt_logprobs: int | None


@dataclass(frozen=True)
class Echo:
    """A prompt as it is repeated.

    Attributes:
        first_token: its first token as text; the replica says nothing of it, since nothing precedes it.
        first_bytes: what that token adds to the text.
        strips_space: the text lacks the space before its first word that the tokens have.
    """

    text: str
    first_token: str
    first_bytes: bytes
    strips_space: bool

    @classmethod
    def of(cls, text: str, first: int, tokenizer: TextCodec) -> Echo:
        token, data = tokenizer.token_text(first), tokenizer.token_bytes(first)
        return cls(text, token, data, tokenizer.first_token_strips_space)


@dataclass
class TextRenderer:
    """Writes one text completion. `echoes` is empty or has one echo a prompt."""

    head: Head
    asked: Asked
    echoes: Sequence[Echo]
    include_usage: bool
    _begun: set[int] = field(default_factory=set)
    _offsets: dict[int, TextOffset] = field(default_factory=dict)

    def frames(self, delta: Delta) -> bytes:
        text, logprobs = self._content(delta)
        events = []
        if text or logprobs:
            events.append(self._event([TextChoice(delta.index, text, logprobs)]))
        if delta.finish_reason is not None:
            events.append(self._event([TextChoice(delta.index, "", None, delta.finish_reason)]))
        return b"".join(events)

    def last_frames(self, usage: UsageSum) -> bytes:
        return self._event([], usage.object()) if self.include_usage else b""

    def whole(self, deltas: Sequence[Delta], usage: UsageSum) -> TextCompletion:
        choices = []
        for delta in best(deltas, self.asked.best_of, self.asked.n):
            text, logprobs = self._content(delta)
            if logprobs is None and self.asked.logprobs is not None:
                logprobs = CompletionLogprobs()
            choice = TextChoice(delta.index, text, logprobs, delta.finish_reason or "stop")
            if self.asked.prompt_logprobs is not None:
                choice.prompt_logprobs = prompt_logprobs(delta.prompt_logprobs, self.asked.prompt_logprobs)
            choices.append(choice)
        return self._completion(choices, usage.object())

    def _event(self, choices: list[TextChoice], usage: UsageObject | None = None) -> bytes:
        return sse.event(self._completion(choices, usage if self.include_usage else UNSET))

    def _completion(self, choices: list[TextChoice], usage: UsageObject | UnsetType | None) -> TextCompletion:
        head = self.head
        return TextCompletion(
            id=head.id,
            created=head.created,
            model=head.model,
            system_fingerprint=head.system_fingerprint,
            choices=choices,
            usage=usage,
        )

    def _content(self, delta: Delta) -> tuple[str, CompletionLogprobs | None]:
        """What a delta adds to its choice; the first begins with the echo of the prompt."""
        echo = self._echo(delta.index)
        text = (echo.text if echo else "") + delta.text
        if self.asked.logprobs is None or not (delta.logprobs or echo):
            return text, None
        lists = CompletionLogprobs()
        offset = self._offsets.setdefault(delta.index, TextOffset(echo.strips_space if echo else False))
        if echo:
            lists.add(echo.first_token, None, None, offset.take(echo.first_bytes))
            self._add(lists, delta.prompt_logprobs, offset)
        self._add(lists, delta.logprobs, offset)
        return text, lists

    def _echo(self, index: int) -> Echo | None:
        if not self.echoes or index in self._begun:
            return None
        self._begun.add(index)
        return self.echoes[index // self.asked.n]

    def _add(
        self, lists: CompletionLogprobs, entries: Sequence[TokenLogprob | None], offset: TextOffset
    ) -> None:
        for entry in entries:
            if entry is not None:
                top = _alternatives(entry, self.asked.logprobs or 0)
                lists.add(entry.token, clamp(entry.logprob), top, offset.take(entry.bytes))


class TextOffset:
    """Where tokens begin in a text, in characters, from the bytes they add to it."""

    def __init__(self, strips_space: bool) -> None:
        self._at = 0
        self._strips_space = strips_space

    def take(self, added: bytes) -> int:
        """The character at which the next token begins: the one it continues if it is a later part of one."""
        if self._strips_space and added:
            added, self._strips_space = added.removeprefix(b" "), False
        before = self._at
        self._at += sum(byte & 0xC0 != 0x80 for byte in added)
        continues = added[:1] and added[0] & 0xC0 == 0x80
        return max(before - 1, 0) if continues else before


def _alternatives(entry: TokenLogprob, count: int) -> dict[str, float]:
    """Token texts to log-probabilities, the chosen token among them. Of equal texts the likelier counts."""
    found = {top.token: clamp(top.logprob) for top in reversed(entry.top[:count])}
    found.setdefault(entry.token, clamp(entry.logprob))
    return found
