"""Tokens that end an answer, by name. They count where a vocabulary marks them as control tokens.

Files made before `eot_token_id` existed name only one of a model's several ends.
"""

from __future__ import annotations

END_TOKENS = frozenset(
    {
        "</s>",
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    }
)
