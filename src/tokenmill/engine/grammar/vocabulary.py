"""A model's tokens as the grammar library wants them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Protocol

import msgspec

if TYPE_CHECKING:
    from llguidance import LLTokenizer

# Names a Lark grammar can refer to; the token then stands for itself and is no part of any text.
_NAMED = re.compile(r"<[^<>\s]+>")
# Forced text beyond this is split greedily: encoding it anew at every token would cost more than it gives.
_MAX_ENCODED_BYTES = 1024


class TokenTable(Protocol):
    """What a grammar needs of a tokenizer."""

    vocab_size: int

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    def token_bytes(self, token_id: int) -> bytes: ...

    def encode(self, text: str, *, add_special: bool) -> list[int]: ...


class GrammarVocabulary(msgspec.Struct, frozen=True):
    """Every token by id.

    Attributes:
        tokens: its bytes in a text, or its name where it is special; empty for ids without a token.
        special_ids: tokens that never are part of a text; Lark grammars ask for them by name.
        end_ids: tokens that end a text, the model's own EOS first.
    """

    tokens: list[bytes]
    special_ids: list[int]
    end_ids: list[int]


def grammar_vocabulary(table: TokenTable, end_ids: Iterable[int]) -> GrammarVocabulary:
    """Reads the vocabulary out of a tokenizer; takes some 10 ms for 50,000 tokens."""
    tokens = [table.token_bytes(number) for number in range(table.vocab_size)]
    special = []
    for name, number in table.special_tokens.items():
        if not tokens[number] or _NAMED.fullmatch(name):
            tokens[number] = name.encode()
            special.append(number)
    return GrammarVocabulary(tokens, sorted(special), list(dict.fromkeys(end_ids)))


def build_tokenizer(
    vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]] | None = None
) -> LLTokenizer:
    """The library's form of a vocabulary: some 0.1 s and 20 MiB for 50,000 tokens.

    Args:
        encode: splits text that a grammar leaves no choice about the way the model has learned it; None
            splits greedily. Its tokens are checked, so any result is safe.
    """
    from llguidance import LLTokenizer, TokenizerWrapper

    source = _Source(vocabulary, encode)
    source.built = LLTokenizer(TokenizerWrapper(source), eos_token=vocabulary.end_ids)
    return source.built


class _Source:
    """What `TokenizerWrapper` reads, by the names it expects. Called back with text; must not raise."""

    def __init__(self, vocabulary: GrammarVocabulary, encode: Callable[[str], list[int]] | None) -> None:
        self.tokens = vocabulary.tokens
        self.special_token_ids = vocabulary.special_ids
        self.eos_token_id = vocabulary.end_ids[0]
        self.bos_token_id = None
        self.built: LLTokenizer | None = None
        self._encode = encode
        self._special = frozenset(vocabulary.special_ids)

    def __call__(self, data: bytes) -> list[int]:
        text = data.decode("utf-8", "replace")
        if self._encode is not None and len(data) <= _MAX_ENCODED_BYTES:
            # After a line break, a tokenizer that puts a space before every text puts it elsewhere.
            for lead in ("", "\n"):
                found = self._suffix(lead + text, data)
                if found is not None:
                    return found
        return self.built.greedy_tokenize(text) if self.built is not None else []

    def _suffix(self, text: str, data: bytes) -> list[int] | None:
        """The last tokens of `text`, those that spell exactly `data`; None where no cut does."""
        if self._encode is None:
            return None
        try:
            ids = self._encode(text)
        except Exception:
            return None
        pieces = [b"" if number in self._special else self.tokens[number] for number in ids]
        surplus = sum(map(len, pieces)) - len(data)
        cut = 0
        while surplus > 0:
            surplus -= len(pieces[cut])
            cut += 1
        return ids[cut:] if b"".join(pieces[cut:]) == data else None
