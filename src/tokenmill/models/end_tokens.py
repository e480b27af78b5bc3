"""Which tokens begin and end a text, for the model's configuration and its tokenizer alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import zip_longest

from tokenmill.models.fields import Fields

CONTROL = 3

_TURN_ENDS = frozenset(
    {
        "<|eot_id|>",
        "<|eom_id|>",
        "<|im_end|>",
        "<|end|>",
        "<|endoftext|>",
        "<|end_of_text|>",
        "<end_of_turn>",
    }
)
_TURN_STARTS = frozenset(
    {"<start_of_turn>", "<|im_start|>", "<|start_header_id|>", "<|end_header_id|>", "<|begin_of_text|>"}
    | {"<|system|>", "<|user|>", "<|assistant|>"}
)
# Spelled so that they are nothing else. Many GGUF files have them as ordinary or user-defined tokens, and a
# chat would not stop at them and print them.
TURN_TOKENS = _TURN_ENDS | _TURN_STARTS
# Ends by name, where they are control tokens: `</s>` is also a tag of HTML. Files made before `eot_token_id`
# existed declare only one of a model's several ends.
END_TOKENS = _TURN_ENDS | {"</s>"}


def gguf_ends(metadata: Fields, vocab_size: int) -> tuple[int, ...]:
    """The declared ends first, then the control tokens that are ends by name: typed so, or marks of a turn.

    Raises:
        ModelFileError: a declared end is no token.
    """
    ids: list[int] = []
    for kind in ("eos", "eot", "eom"):
        ids += metadata.token_ids(f"tokenizer.ggml.{kind}_token_id", vocab_size)
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list):
        kinds = types if isinstance(types, list) else []
        for n, (token, kind) in enumerate(zip_longest(tokens[:vocab_size], kinds[: len(tokens)])):
            if isinstance(token, str) and token in END_TOKENS and (kind == CONTROL or token in _TURN_ENDS):
                ids.append(n)
    return tuple(dict.fromkeys(ids))


def declared_ids(kind: str, files: Iterable[Fields], vocab_size: int) -> Iterator[int]:
    """Every `bos_token_id` or `eos_token_id` of a folder's files; chat models often name the end of a turn in
    one of them only.

    Args:
        kind: bos or eos.

    Raises:
        ModelFileError: one is no token.
    """
    for file in files:
        yield from file.token_ids(f"{kind}_token_id", vocab_size)
