"""The vocabulary a GGUF file holds: its lists under `tokenizer.ggml`, checked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import CONTROL, TURN_TOKENS

MAX_TOKENS = 1 << 21
MAX_TOKEN_CHARS = 1024
# Gemma's 262144 tokens have half a million, the most of any model.
MAX_MERGES = 1 << 21
NORMAL, UNKNOWN, USER_DEFINED = 1, 2, 4


class Vocabulary:
    """Tokens by id with their types. The marks of a chat's turns are control tokens, whatever the file says.

    Raises, like every method: ModelFileError where a key is missing or of the wrong type.
    """

    def __init__(self, metadata: Mapping[str, object]) -> None:
        self._metadata = metadata
        self.tokens = self._strings("tokens")
        given = self._numbers("token_type") or [NORMAL] * len(self.tokens)
        self.types = [
            CONTROL if token in TURN_TOKENS else kind for token, kind in zip(self.tokens, given, strict=True)
        ]

    def of_type(self, *kinds: int) -> list[str]:
        """The tokens of these types, by id."""
        pairs = zip(self.tokens, self.types, strict=True)
        return [token for token, kind in pairs if token and kind in kinds]

    def scores(self) -> Sequence[float]:
        """A score for each token."""
        scores = self._numbers("scores")
        if scores is None:
            raise ModelFileError("the file has no tokenizer.ggml.scores, which a llama tokenizer needs")
        return scores

    def merges(self) -> list[tuple[str, str]]:
        """The pairs that are joined, in order of rank. Both and what they make are tokens."""
        merges: list[tuple[str, str]] = []
        known = set(self.tokens)
        for line in self._strings("merges", MAX_MERGES):
            left, space, right = line.partition(" ")
            if not (left and space and right):
                raise ModelFileError(f"tokenizer.ggml.merges holds {show(line)}, which is not two tokens")
            if not (left in known and right in known and left + right in known):
                raise ModelFileError(f"the merge of {show(left)} and {show(right)} does not fit the tokens")
            merges.append((left, right))
        return merges

    def flag(self, name: str, default: bool) -> bool:
        value = self._metadata.get(f"tokenizer.ggml.{name}", default)
        if not isinstance(value, bool):
            raise ModelFileError(f"tokenizer.ggml.{name} must be true or false, not {show(value)}")
        return value

    def _strings(self, name: str, most: int = MAX_TOKENS) -> list[str]:
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key)
        if not isinstance(value, (list, tuple)) or not value or not all(type(item) is str for item in value):
            raise ModelFileError(f"{key} must be a list of strings")
        if len(value) > most:
            raise ModelFileError(f"{key} has {len(value)} entries; at most {most} are allowed")
        longest = max(map(len, value))
        if longest > MAX_TOKEN_CHARS:
            raise ModelFileError(
                f"{key} has an entry of {longest} characters; at most {MAX_TOKEN_CHARS} are allowed"
            )
        return list(value)

    def _numbers(self, name: str) -> Sequence[float] | None:
        key = f"tokenizer.ggml.{name}"
        value = self._metadata.get(key)
        if value is None:
            return None
        if not isinstance(value, (list, tuple)) or not all(type(item) in (int, float) for item in value):
            raise ModelFileError(f"{key} must be a list of numbers")
        if len(value) != len(self.tokens):
            raise ModelFileError(f"{key} has {len(value)} entries for {len(self.tokens)} tokens")
        return value
