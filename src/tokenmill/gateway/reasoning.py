"""The thoughts of a model that thinks aloud before it answers: their text, and where a grammar may begin."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tokenmill.core.request import Grammar
from tokenmill.gateway.lark import free_until, mark
from tokenmill.gateway.text_marks import SPACE, partial

OPEN, CLOSE = "<think>", "</think>"


@dataclass(frozen=True)
class Thinking:
    """How the answers of one request think.

    Attributes:
        begun: the prompt ends inside thoughts.
        close_id: the token that ends them; None when it takes several.
    """

    begun: bool
    close_id: int | None


def thinking_of(template: str, prompt: str, special_tokens: Mapping[str, int]) -> Thinking | None:
    """What the template and the prompt it made say; None for a model that does not think aloud."""
    if CLOSE not in template:
        return None
    return Thinking(prompt.rstrip().endswith(OPEN), special_tokens.get(CLOSE))


class ThoughtSplitter:
    """Splits one choice's text into thoughts and the rest, however it is cut.

    White space at the ends of the thoughts, and between them and the answer, belongs to neither.

    Attributes:
        thought: whether there were thoughts.
    """

    def __init__(self, begun: bool) -> None:
        self.thought = begun
        self._inside: bool | None = True if begun else None  # None: not known yet
        self._held = ""
        self._leading = True

    def feed(self, text: str) -> tuple[str, str]:
        """New thoughts and new text of the answer."""
        self._held += text
        thoughts = ""
        if self._inside is None:
            self._look()
        if self._inside:
            thoughts = self._think()
        return thoughts, self._answer() if self._inside is False else ""

    def finish(self) -> tuple[str, str]:
        """The text has ended: what is held belongs where it stands."""
        rest, self._held = self._held, ""
        if self._inside:
            return rest.strip(SPACE) if self._leading else rest.rstrip(SPACE), ""
        return "", rest if self._inside is None else ""

    def _look(self) -> None:
        start = self._held.lstrip(SPACE)
        if start.startswith(OPEN):
            self._held, self._inside, self.thought = start[len(OPEN) :], True, True
        elif not OPEN.startswith(start):
            self._inside, self._leading = False, False

    def _think(self) -> str:
        if self._leading:
            self._held = self._held.lstrip(SPACE)
        at = self._held.find(CLOSE)
        end = at if at >= 0 else len(self._held) - partial(self._held, CLOSE)
        thoughts = self._held[:end].rstrip(SPACE)
        self._leading = self._leading and not thoughts
        if at < 0:
            self._held = self._held[len(thoughts) :]
        else:
            self._held, self._inside, self._leading = self._held[at + len(CLOSE) :], False, True
        return thoughts

    def _answer(self) -> str:
        if self._leading:
            self._held = self._held.lstrip(SPACE)
            self._leading = not self._held
        text, self._held = self._held, ""
        return text


def after_thoughts(grammar: Grammar, thinking: Thinking, special_tokens: Mapping[str, int]) -> Grammar:
    """The grammar for what follows the thoughts, which are free.

    Only for schemas and for grammars whose first rule is `start`.
    """
    thoughts = "thoughts gap" if thinking.begun else f"({mark(OPEN, special_tokens)} thoughts gap)?"
    rules = [
        f"start: {thoughts} answer",
        *free_until("thoughts", "THOUGHTS", CLOSE, special_tokens),
        "THOUGHTS: /(.|\\n)*/",
        "gap: /[ \\n]{0,4}/",
    ]
    if grammar.kind == "json_schema":
        rules.append(f"answer: %json {grammar.source}\n")
    else:
        rules.append("answer:" + grammar.source.removeprefix("start:"))
    return Grammar("lark", "\n".join(rules))
