"""Where a model's tokenizer and chat template come from."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TokenizerFiles:
    """Exactly one of the two is set.

    Attributes:
        gguf: metadata of a GGUF file by key (`tokenizer.ggml.tokens`, ...). Values are plain Python:
            int, float, bool, str, and lists of them.
        folder: a folder in Hugging Face layout (tokenizer.json, tokenizer_config.json, ...).
    """

    gguf: Mapping[str, object] | None = None
    folder: Path | None = None
