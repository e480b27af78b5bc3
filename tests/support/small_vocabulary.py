"""Tokens one can list: letters, some of their combinations, a special token, two ends."""

from __future__ import annotations

from collections.abc import Mapping

EOS = 0
TEXTS = ("a", "b", "c", "d", "ab", "bc", "abc")
NAMES = ("<end>", "<stop>", "<tool>")


class SmallVocabulary:
    """A tokenizer whose `encode` knows single letters only; `broken`: none at all."""

    end_ids = (0, 1)
    vocab_size = 40  # more ids than tokens

    def __init__(self, *, broken: bool = False) -> None:
        self._broken = broken

    @property
    def special_tokens(self) -> Mapping[str, int]:
        return {name: number for number, name in enumerate(NAMES)}

    def token_bytes(self, token_id: int) -> bytes:
        place = token_id - len(NAMES)
        return TEXTS[place].encode() if 0 <= place < len(TEXTS) else b""

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        if self._broken:
            raise ValueError("this tokenizer breaks on everything")
        return [self.id(char) for char in text]

    def id(self, text: str) -> int:
        return (*NAMES, *TEXTS).index(text)

    def name(self, token_id: int) -> str:
        return (*NAMES, *TEXTS)[token_id]
