"""Reads the tokenizer of a folder in Hugging Face layout."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

from tokenizers import Tokenizer

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import declared_ids
from tokenmill.models.fields import MAX_VOCAB, Fields
from tokenmill.models.json_file import read_json_object
from tokenmill.models.tokenizer_parts import TokenizerParts, no_panic

MAX_TOKENIZER_BYTES = 256 << 20
MAX_CONFIG_BYTES = 32 << 20
# A run of this length makes cubic patterns reach the library's limit, and quadratic ones not.
PROBE_RUN = 500
PROBE_LETTERS = 256


def read_folder(folder: Path) -> TokenizerParts:
    """The tokenizer of `folder`, from tokenizer.json; the small JSON files beside it name BOS and the ends.

    Raises:
        ModelFileError: a file is missing, too large or malformed, or names a token that does not exist.
    """
    backend = _load_backend(folder)
    config = read_json(folder, "tokenizer_config.json")
    named = (config, read_json(folder, "special_tokens_map.json"))
    numbered = [Fields(name, read_json(folder, name)) for name in ("generation_config.json", "config.json")]
    begins, ends = (
        [*_named_ids(backend, kind, named), *declared_ids(kind, numbered, MAX_VOCAB)]
        for kind in ("bos", "eos")
    )
    bos_id = begins[0] if begins else None
    if "bos_token" in config and config["bos_token"] is None:
        bos_id = None
    add_bos = config.get("add_bos_token")
    if add_bos is None:
        prefix = _prefix(backend)
    elif add_bos is True and bos_id is None:
        raise ModelFileError("tokenizer_config.json sets add_bos_token but no file names the BOS token")
    else:
        prefix = (bos_id,) if add_bos is True and bos_id is not None else ()
    return TokenizerParts(backend, bos_id, tuple(dict.fromkeys(ends)), prefix)


def read_json(folder: Path, name: str) -> dict[str, object]:
    """A small JSON object of the folder; empty when the file is not there."""
    path = folder / name
    return read_json_object(path, MAX_CONFIG_BYTES) if path.exists() else {}


def read_text(folder: Path, name: str, max_bytes: int) -> str | None:
    """A file of the folder as text; None when it is not there."""
    path = folder / name
    try:
        size = path.stat().st_size
        if size > max_bytes:
            raise ModelFileError(f"{name} has {size} bytes; at most {max_bytes} are allowed")
        return path.read_text("utf-8")
    except FileNotFoundError:
        return None
    except UnicodeDecodeError:
        raise ModelFileError(f"{name} is not UTF-8 text") from None
    except OSError as error:
        raise ModelFileError(f"{name} cannot be read: {error.strerror}") from None


def _load_backend(folder: Path) -> Tokenizer:
    text = read_text(folder, "tokenizer.json", MAX_TOKENIZER_BYTES)
    if text is None:
        raise ModelFileError("the model's folder has no tokenizer.json")
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


def _prefix(backend: Tokenizer) -> tuple[int, ...]:
    """The tokens the post-processor puts in front of a text."""
    with no_panic("tokenizer.json breaks the tokenizer library", ModelFileError):
        plain = backend.encode("a", add_special_tokens=False).ids
        full = backend.encode("a", add_special_tokens=True).ids
    for start in range(len(full) - len(plain) + 1):
        if full[start : start + len(plain)] == plain:
            return tuple(full[:start])
    return ()


def _named_ids(backend: Tokenizer, kind: str, files: Iterable[Mapping[str, object]]) -> Iterator[int]:
    """Ids of the BOS or EOS tokens that are given by name."""
    for file in files:
        value = file.get(f"{kind}_token")
        if isinstance(value, dict):
            value = value.get("content")
        if isinstance(value, str) and value:
            number = backend.token_to_id(value)
            if number is None:
                raise ModelFileError(f"{kind}_token is {show(value)}, which is not in the vocabulary")
            yield number
