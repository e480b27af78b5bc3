"""Grammar text to a parser of the grammar library, within limits. Only the grammar library is needed for it.

The limits are per grammar (compiling) and per token (masks). What they allow at most, measured with
`benchmarks/grammar.py`: docs/decisions/structured-output.md.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from llguidance import LLMatcher, LLParserLimits, LLTokenizer

from tokenmill.core import bounds

LIMITS = LLParserLimits(
    max_items_in_row=1_000,  # a schema may have some 250 optional properties side by side
    initial_lexer_fuel=500_000,
    step_lexer_fuel=100_000,
    step_max_items=10_000,
    max_lexer_states=10_000,  # about 1 KiB each, in every sequence
    max_grammar_size=100_000,
    verbose_errors=False,
)

# A schema cannot override these. Keywords that the library knows but cannot hold are an error, unless the
# schema says {"x-guidance": {"lenient": true}}.
_JSON_RULES = {"whitespace_pattern": bounds.JSON_WHITESPACE}
_MAX_MESSAGE_CHARS = 200
# Where the library's own wrapping of a schema or regex shows through.
_POSITION = re.compile(r"^(?:at )?\d+\(\d+\): ")


class GrammarError(Exception):
    """A grammar that cannot be used; the message is one short line for its author."""


def build_matcher(tokenizer: LLTokenizer, kind: str, source: str) -> LLMatcher:
    """A matcher before its first token, whose first mask has been computed.

    Raises:
        GrammarError: malformed, not supported, beyond the limits, or matched by no text at all.
    """
    try:
        grammar = _READERS[kind](source)
    except ValueError as error:
        raise GrammarError(_one_line(str(error), kind)) from None
    matcher = LLMatcher(tokenizer, grammar, log_level=0, limits=LIMITS)
    if not matcher.is_error():
        matcher.compute_bitmask()
        if matcher.is_error() and matcher.stop_reason() == "InternalError":
            raise GrammarError("no text matches it")
    if matcher.is_error():
        raise GrammarError(_one_line(matcher.get_error(), kind))
    return matcher


def _json_schema(source: str) -> str:
    return LLMatcher.grammar_from_json_schema(source, overrides=_JSON_RULES)  # type: ignore[arg-type]  # a TypedDict


_READERS: Mapping[str, Callable[[str], str]] = {
    "json_schema": _json_schema,
    "regex": LLMatcher.grammar_from_regex,
    "lark": LLMatcher.grammar_from_lark,
}


def _one_line(message: str, kind: str) -> str:
    """What the library says, without its drawings of the source."""
    lines = [line.strip() for line in message.replace("<non-verbose/>", "").splitlines()]
    reasons = [line.removeprefix("error: ") for line in lines if line.startswith("error: ")]
    text = f"regex parse error: {reasons[0]}" if reasons else next(filter(None, lines), "it is not usable")
    if kind != "lark":
        text = _POSITION.sub("", text)
    text = "".join(char if char.isprintable() else " " for char in text)
    return text if len(text) <= _MAX_MESSAGE_CHARS else text[: _MAX_MESSAGE_CHARS - 3] + "..."
