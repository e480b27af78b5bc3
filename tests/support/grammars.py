"""Whether a text matches a grammar, told by the compiler the engine uses, over a tokenizer of bytes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import llguidance

from tokenmill.core.request import Grammar

EOS = 256


class _Bytes:
    """One token a byte, the end, and special tokens by name."""

    eos_token_id = EOS
    bos_token_id = None

    def __init__(self, names: Sequence[str]) -> None:
        self.tokens = [*(bytes([byte]) for byte in range(256)), b"<eos>", *(name.encode() for name in names)]
        self.special_token_ids = [EOS, *range(EOS + 1, len(self.tokens))]

    def __call__(self, text: bytes) -> list[int]:
        return list(text)


class GrammarCheck:
    """Matches texts in which the names of special tokens stand for these tokens."""

    def __init__(self, special_tokens: Mapping[str, int]) -> None:
        names = sorted(special_tokens, key=special_tokens.__getitem__)
        assert [special_tokens[name] for name in names] == list(range(EOS + 1, EOS + 1 + len(names)))
        self._special = special_tokens
        self._split = re.compile(f"({'|'.join(map(re.escape, names))})" if names else r"(\Z)")
        self._tokenizer = llguidance.LLTokenizer(llguidance.TokenizerWrapper(_Bytes(names)))

    def error(self, grammar: Grammar) -> str:
        """Why the grammar does not compile; empty when it does."""
        return llguidance.LLMatcher.validate_grammar(_compiled(grammar), self._tokenizer)

    def taken(self, grammar: Grammar, text: str) -> tuple[str, bool]:
        """The longest beginning of `text` that the grammar allows, and whether an answer may end there."""
        matcher = llguidance.LLMatcher(self._tokenizer, _compiled(grammar), log_level=0)
        assert not matcher.is_error(), matcher.get_error()
        done = ""
        for piece in filter(None, self._split.split(text)):
            tokens = [self._special[piece]] if piece in self._special else list(piece.encode())
            for token in tokens:
                if not matcher.validate_tokens([token]):
                    return done, matcher.is_accepting()
                matcher.consume_token(token)
                done += piece if piece in self._special else chr(token)
        return done, matcher.is_accepting()

    def matches(self, grammar: Grammar, text: str) -> bool:
        return self.taken(grammar, text) == (text.encode().decode("latin-1"), True)


def _compiled(grammar: Grammar) -> str:
    match grammar.kind:
        case "json_schema":
            return llguidance.LLMatcher.grammar_from_json_schema(grammar.source)
        case "regex":
            return llguidance.LLMatcher.grammar_from_regex(grammar.source)
        case "lark":
            return llguidance.LLMatcher.grammar_from_lark(grammar.source)
