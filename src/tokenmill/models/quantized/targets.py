"""Lists of modules as compressed-tensors writes them: names, patterns behind `re:`, and class names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from pydantic_core import SchemaError, SchemaValidator, core_schema

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError

MAX_TARGETS = 1 << 16
MAX_PATTERNS = 256
MAX_PATTERN_CHARS = 1024
_PATTERN = "re:"


class Targets:
    """Which modules a list means.

    Patterns fit from the start of a name on and need not reach its end. They are the file's, so they are run
    by an engine whose time only grows with the name's length; it has no look-around.

    Raises:
        ModelFileError: too many entries, or a pattern that cannot be read.
    """

    def __init__(self, label: str, entries: Sequence[str]) -> None:
        patterns = [entry.removeprefix(_PATTERN) for entry in entries if entry.startswith(_PATTERN)]
        if len(entries) > MAX_TARGETS or len(patterns) > MAX_PATTERNS:
            raise ModelFileError(
                f"{label} has {len(entries)} entries, {len(patterns)} of them patterns; at most "
                f"{MAX_TARGETS} and {MAX_PATTERNS} are allowed"
            )
        self._names = frozenset(entry for entry in entries if not entry.startswith(_PATTERN))
        self._patterns = [_compile(label, pattern) for pattern in patterns]

    def specificity(self, module: str) -> Literal[0, 1, 2, 3]:
        """How a module is meant: 3 by name, 2 by a pattern, 1 by its class, 0 not at all."""
        if module in self._names:
            return 3
        if any(pattern.isinstance_python(module) for pattern in self._patterns):
            return 2
        return 1 if _class_of(module) in self._names else 0


def _class_of(module: str) -> str:
    """Modules with quantized matrices are linear, but for the table of embeddings."""
    return "Embedding" if module.endswith("embed_tokens") else "Linear"


def _compile(label: str, pattern: str) -> SchemaValidator:
    if len(pattern) > MAX_PATTERN_CHARS:
        raise ModelFileError(
            f"{label}: a pattern of {len(pattern)} characters; at most {MAX_PATTERN_CHARS} are allowed"
        )
    anchored = core_schema.str_schema(pattern=rf"\A(?:{pattern})", regex_engine="rust-regex", strict=True)
    try:
        return SchemaValidator(anchored)
    except SchemaError:
        raise ModelFileError(f"{label}: the pattern {show(pattern)} cannot be used") from None
