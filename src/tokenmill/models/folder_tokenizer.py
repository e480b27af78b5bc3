"""Reads the tokenizer of a folder in Hugging Face layout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from tokenizers import AddedToken, Tokenizer

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import declared_ids
from tokenmill.models.fields import MAX_VOCAB, Fields
from tokenmill.models.folder_files import read_bytes, read_json, read_text
from tokenmill.models.gguf_tokenizer import read_gguf
from tokenmill.models.gguf_vocabulary import MAX_MERGES, MAX_TOKENS
from tokenmill.models.sentencepiece_file import read_pieces
from tokenmill.models.tokenizer_parts import TokenizerParts, no_panic

MAX_TOKENIZER_BYTES = 256 << 20
MAX_PIECES_BYTES = 32 << 20
# In tokenizer.json: its tokens, and two to a merge.
MAX_STRINGS = MAX_TOKENS + 2 * MAX_MERGES
MAX_DECLARED = 1 << 16
# A run of this length makes cubic patterns reach the library's limit, and quadratic ones not.
PROBE_RUN = 500
PROBE_LETTERS = 256


def read_folder(folder: Path) -> TokenizerParts:
    """The tokenizer of `folder`, from tokenizer.json or else from a SentencePiece tokenizer.model.

    The small JSON files beside it name BOS and the ends.

    Raises:
        ModelFileError: a file is missing, too large or malformed, or names a token that does not exist.
    """
    config = read_json(folder, "tokenizer_config.json")
    found = _from_json(folder) or _from_pieces(folder, config)
    if found is None:
        raise ModelFileError("the model's folder has no tokenizer.json and no tokenizer.model")
    _add_declared(found.backend, config)
    named = (config, read_json(folder, "special_tokens_map.json"))
    numbered = [Fields(name, read_json(folder, name)) for name in ("generation_config.json", "config.json")]
    begins, ends = (
        [*_named_ids(found.backend, kind, named), *declared_ids(kind, numbered, MAX_VOCAB)]
        for kind in ("bos", "eos")
    )
    bos_id = begins[0] if begins else found.bos_id
    if "bos_token" in config and config["bos_token"] is None:
        bos_id = None
    return replace(found, bos_id=bos_id, eos_ids=tuple(dict.fromkeys(ends)) or found.eos_ids)


def _from_json(folder: Path) -> TokenizerParts | None:
    """What tokenizer.json holds.

    It alone says what is put around a text: `add_bos_token` in tokenizer_config.json has no effect beside it,
    as in transformers.
    """
    text = read_text(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)
    if text is None:
        return None
    backend = _load_backend(text)
    prefix, suffix = _surroundings(backend)
    return TokenizerParts(backend, None, (), prefix, suffix)


def _from_pieces(folder: Path, config: Mapping[str, object]) -> TokenizerParts | None:
    """What tokenizer.model holds; BOS begins a text unless the configuration says otherwise."""
    data = read_bytes(folder, "tokenizer.model", MAX_PIECES_BYTES)
    if data is None:
        return None
    flags = {
        f"tokenizer.ggml.{name}": config[name]
        for name in ("add_bos_token", "add_eos_token")
        if config.get(name) is not None
    }
    return read_gguf({**read_pieces(data), **flags})


def _load_backend(text: str) -> Tokenizer:
    # A string of two letters in the file takes a hundred bytes in memory.
    strings = text.count('"') // 2
    if strings > MAX_STRINGS:
        raise ModelFileError(f"tokenizer.json has {strings} strings; at most {MAX_STRINGS} are allowed")
    with no_panic("tokenizer.json cannot be used: it breaks the tokenizer library", ModelFileError):
        try:
            backend = Tokenizer.from_str(text)
        except Exception as error:  # the library raises bare Exception for whatever it cannot read
            raise ModelFileError(f"tokenizer.json cannot be used: {str(error)[:300]}") from None
    backend.no_truncation()
    backend.no_padding()
    _probe(backend)
    return backend


def _probe(backend: Tokenizer) -> None:
    """Refuses regular expressions that backtrack without end.

    The library panics on a text they cannot get through, and each panic writes to standard error. Runs of one
    letter are such texts: letters of the patterns themselves, and one of every common class.
    """
    parts = [part for part in (backend.normalizer, backend.pre_tokenizer) if part is not None]
    letters = {*"".join(part.__getstate__().decode() for part in parts), *"aA0 \n.'é中"}
    text = "".join(letter * PROBE_RUN + "\0" for letter in sorted(letters)[:PROBE_LETTERS])
    # A text without tokens is an ordinary error, and the model's own business.
    with (
        no_panic("tokenizer.json cannot be used: a pattern in it takes too long", ModelFileError),
        contextlib.suppress(Exception),
    ):
        backend.encode_batch_fast([text], add_special_tokens=False)


def _add_declared(backend: Tokenizer, config: Mapping[str, object]) -> None:
    """Adds the tokens of `added_tokens_decoder`; where tokenizer.json has one too, these flags count.

    Raises:
        ModelFileError: an entry is malformed, or a new token would get another id than it claims.
    """
    declared = config.get("added_tokens_decoder") or {}
    if not isinstance(declared, dict) or len(declared) > MAX_DECLARED:
        raise ModelFileError(f"added_tokens_decoder must be an object of at most {MAX_DECLARED} tokens")
    tokens = dict(sorted(map(_declared_token, declared, declared.values()), key=lambda pair: pair[0]))
    ends = {_name(config.get(f"{kind}_token")) for kind in ("bos", "eos")}
    for token in tokens.values():
        token.special = token.special or token.content in ends
    new = {number for number, token in tokens.items() if backend.token_to_id(token.content) is None}
    with no_panic("added_tokens_decoder breaks the tokenizer library", ModelFileError):
        backend.add_tokens(list(tokens.values()))
    for number in sorted(new):
        name = tokens[number].content
        if backend.token_to_id(name) != number:
            raise ModelFileError(
                f"added_tokens_decoder gives {show(name)} the id {number}; "
                f"the next free one is {backend.token_to_id(name)}"
            )


def _declared_token(key: str, entry: object) -> tuple[int, AddedToken]:
    content = _name(entry)
    if not (key.isascii() and key.isdecimal() and len(key) < 10 and isinstance(entry, dict) and content):
        raise ModelFileError(f"added_tokens_decoder has a malformed entry {show(key)}")
    flags = {}
    for name in ("lstrip", "rstrip", "normalized", "single_word", "special"):
        if name in entry:
            if not isinstance(entry[name], bool):
                raise ModelFileError(
                    f"{name} of {show(content)} must be true or false, not {show(entry[name])}"
                )
            flags[name] = entry[name]
    return int(key), AddedToken(content, **flags)


def _surroundings(backend: Tokenizer) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens the post-processor puts before a text and after it."""
    with no_panic("tokenizer.json breaks the tokenizer library", ModelFileError):
        plain = backend.encode("a", add_special_tokens=False).ids
        full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start]), tuple(full[start + len(plain) :])
    return (), ()


def _named_ids(backend: Tokenizer, kind: str, files: Iterable[Mapping[str, object]]) -> Iterator[int]:
    """Ids of the BOS or EOS tokens that are given by name.

    A BOS outside the vocabulary is none: no text the model was trained on began with it. An EOS outside it
    would never come.

    Raises:
        ModelFileError: an EOS is not in the vocabulary.
    """
    for file in files:
        name = _name(file.get(f"{kind}_token"))
        number = backend.token_to_id(name) if name else None
        if number is not None:
            yield number
        elif name and kind == "eos":
            raise ModelFileError(f"eos_token is {show(name)}, which is not in the vocabulary")


def _name(value: object) -> str | None:
    """A token's spelling: a string, or an object that holds it as `content`."""
    if isinstance(value, dict):
        value = value.get("content")
    return value if isinstance(value, str) else None
