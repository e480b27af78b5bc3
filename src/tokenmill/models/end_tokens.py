"""Which tokens begin and end a text, for the model's configuration and its tokenizer alike."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from tokenmill.models.fields import Fields

# Ends by name. They count where a GGUF vocabulary marks them as control tokens: an ordinary token of that
# spelling is text. Files made before `eot_token_id` existed declare only one of a model's several ends.
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

_CONTROL = 3


def gguf_ends(metadata: Fields, vocab_size: int) -> tuple[int, ...]:
    """The declared ends first, then the control tokens that are ends by name.

    Raises:
        ModelFileError: a declared end is no token.
    """
    ids: list[int] = []
    for kind in ("eos", "eot", "eom"):
        ids += metadata.token_ids(f"tokenizer.ggml.{kind}_token_id", vocab_size)
    tokens, types = metadata.get("tokenizer.ggml.tokens"), metadata.get("tokenizer.ggml.token_type")
    if isinstance(tokens, list) and isinstance(types, list):
        controls = (n for n, kind in enumerate(types[: min(vocab_size, len(tokens))]) if kind == _CONTROL)
        ids += [n for n in controls if tokens[n] in END_TOKENS]
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
