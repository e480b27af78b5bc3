"""Text to token ids and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from tokenmill.core.errors import GenerationFailed, InvalidRequest, ModelFileError
from tokenmill.models.folder_tokenizer import read_folder
from tokenmill.models.gguf_tokenizer import read_gguf
from tokenmill.models.tokenizer_files import TokenizerFiles
from tokenmill.models.tokenizer_parts import TokenizerParts, no_panic, shortening, token_bytes_table


class Tokenizer:
    """A model's tokenizer. Read-only after construction.

    Attributes:
        vocab_size: ids the model knows; some may have no token.
        bos_id: the token that begins a text, when the model has one.
        eos_ids: every token that ends a text, the model's own EOS first.
        add_bos: whether `encode(..., add_special=True)` puts something, usually BOS, before the text. Few
            models want EOS after it as well.
        first_token_strips_space: the decoded text drops one leading space, as SentencePiece models put
            one before every text. `token_bytes` keeps it: joining bytes gives that space back.
        special_tokens: name -> id of every token that is matched whole in a text, before it is split. Control
            tokens have no bytes of their own (`token_bytes`); others, such as Qwen's `<tool_call>`, have.
        longest_token_bytes: the most bytes of UTF-8 text that one token stands for, but for white space that
            some models drop around their special tokens.
    """

    def __init__(self, parts: TokenizerParts, vocab_size: int) -> None:
        for number in (*parts.prefix, *parts.suffix, *parts.eos_ids):
            if number >= vocab_size:
                raise ModelFileError(
                    f"the tokenizer has special token {number}, the weights only ids up to {vocab_size - 1}"
                )
        self.vocab_size = vocab_size
        self.bos_id = parts.bos_id
        self.eos_ids = parts.eos_ids
        self.add_bos = bool(parts.prefix)
        self._prefix, self._suffix = parts.prefix, parts.suffix
        self._backend = parts.backend
        self._bytes, self.first_token_strips_space = token_bytes_table(parts.backend, vocab_size)
        added = parts.backend.get_added_tokens_decoder()
        self._special = {number: token.content for number, token in added.items() if token.special}
        self.special_tokens: Mapping[str, int] = MappingProxyType(
            {token.content: number for number, token in added.items() if number < vocab_size}
        )
        names = (name.encode() for name in self._special.values())
        longest = max(map(len, (*self._bytes, *names)), default=0)
        self.longest_token_bytes = longest * shortening(parts.backend)

    @property
    def bos_token(self) -> str:
        """BOS by name; empty when the model has none."""
        return "" if self.bos_id is None else self.token_text(self.bos_id)

    @property
    def eos_token(self) -> str:
        """The model's own EOS by name; empty when it has none."""
        return self.token_text(self.eos_ids[0]) if self.eos_ids else ""

    def encode(self, text: str, *, add_special: bool) -> list[int]:
        """Token ids of `text`. Special tokens written out in the text become those tokens.

        Raises:
            InvalidRequest: the text holds a lone surrogate.
            GenerationFailed: the tokenizer library breaks on it.
        """
        with no_panic("the model's tokenizer breaks on this text", GenerationFailed):
            try:
                # `encode` would hold the GIL for the whole text; the batch call lets other threads run.
                (encoding,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            except (TypeError, UnicodeError):
                raise InvalidRequest("the text holds a lone surrogate, which is not text") from None
        return [*self._prefix, *encoding.ids, *self._suffix] if add_special else encoding.ids

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str:
        """The text of `ids`. Bytes that are not UTF-8 become U+FFFD; ids outside the vocabulary, nothing."""
        named = {} if skip_special else self._special
        pieces = (named[i].encode() if i in named else self.token_bytes(i) for i in ids)
        text = b"".join(pieces).decode("utf-8", "replace")
        return text.removeprefix(" ") if self.first_token_strips_space else text

    def token_bytes(self, token_id: int) -> bytes:
        """What the token adds to a text: exact bytes, also of half a character; `b""` for special tokens."""
        return self._bytes[token_id] if 0 <= token_id < self.vocab_size else b""

    def token_text(self, token_id: int) -> str:
        """The token for display: special tokens by name, others as text, U+FFFD where it is incomplete."""
        return self._special.get(token_id) or self.token_bytes(token_id).decode("utf-8", "replace")


def load_tokenizer(files: TokenizerFiles, vocab_size: int) -> Tokenizer:
    """The tokenizer for a model with `vocab_size` ids.

    Raises:
        ModelFileError: it is missing, malformed, of an unknown kind, or does not fit the model.
    """
    if files.gguf is not None:
        return Tokenizer(read_gguf(files.gguf), vocab_size)
    if files.folder is not None:
        return Tokenizer(read_folder(files.folder), vocab_size)
    raise ModelFileError("the model comes without a tokenizer")
