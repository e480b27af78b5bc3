"""Builds a tokenizer from the metadata of a GGUF file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import islice

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import CONTROL, gguf_ends
from tokenmill.models.fields import Fields
from tokenmill.models.gguf_splits import Split, split_of
from tokenmill.models.gguf_vocabulary import (
    MAX_MERGES,
    NORMAL,
    UNKNOWN,
    USER_DEFINED,
    Vocabulary,
)
from tokenmill.models.tokenizer_parts import MARK, TokenizerParts, no_panic

# Of all tokens that may be joined, together; Gemma's 262144 have 2.3 million. Each is a place to cut at.
MAX_LETTERS = 1 << 24
# Phi-3's tokens that keep the white space after them; its others swallow it. No file says so.
_PHI3_KEEPS_SPACE = frozenset({"<unk>", "<s>", "<|endoftext|>"})


def read_gguf(metadata: Mapping[str, object]) -> TokenizerParts:
    """The tokenizer a GGUF file describes.

    Raises:
        ModelFileError: a key is missing, of the wrong type, or names something unknown.
    """
    kind = metadata.get("tokenizer.ggml.model")
    vocabulary = Vocabulary(metadata)
    strips_after: frozenset[str] = frozenset()
    if kind == "gpt2":
        split = split_of(metadata.get("tokenizer.ggml.pre", "default"))
        backend, add_bos = _byte_level(vocabulary, split), split.add_bos
    elif kind == "llama":
        backend, add_bos = _sentencepiece(vocabulary), True
        if metadata.get("general.architecture") == "phi3":
            strips_after = frozenset(vocabulary.tokens) - _PHI3_KEEPS_SPACE
    else:
        raise ModelFileError(f"tokenizer.ggml.model is {show(kind)}; known are gpt2 and llama")
    _add_special(backend, vocabulary, strips_after)
    fields = Fields("the file", metadata)
    bos_id = next(iter(fields.token_ids("tokenizer.ggml.bos_token_id", len(vocabulary.tokens))), None)
    eos_id = next(iter(fields.token_ids("tokenizer.ggml.eos_token_id", len(vocabulary.tokens))), None)
    return TokenizerParts(
        backend,
        bos_id,
        eos_ids=gguf_ends(fields, len(vocabulary.tokens)),
        prefix=_wanted(vocabulary, "bos", bos_id, default=add_bos and bos_id is not None),
        suffix=_wanted(vocabulary, "eos", eos_id, default=False),
    )


def _wanted(vocabulary: Vocabulary, kind: str, token_id: int | None, *, default: bool) -> tuple[int, ...]:
    """The BOS or EOS token, where the file wants it around every text."""
    if not vocabulary.flag(f"add_{kind}_token", default):
        return ()
    if token_id is None:
        raise ModelFileError(
            f"the file wants a {kind.upper()} token but has no tokenizer.ggml.{kind}_token_id"
        )
    return (token_id,)


def _byte_level(vocabulary: Vocabulary, split: Split) -> Tokenizer:
    backend = _bpe(vocabulary.tokens, vocabulary.merges(), whole_words=split.whole_words)
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = split.pre_tokenizer()
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(vocabulary: Vocabulary) -> Tokenizer:
    """BPE by scores: SentencePiece always joins the pair whose result scores highest."""
    tokens, types = vocabulary.tokens, vocabulary.types
    merges = merges_from_scores(tokens, vocabulary.scores(), types)
    unknown = next(iter(vocabulary.of_type(UNKNOWN)), None)
    spelled = [_as_text(token, kind) for token, kind in zip(tokens, types, strict=True)]
    backend = _bpe(spelled, merges, unknown=unknown, byte_fallback=True)
    marks: list[normalizers.Normalizer] = []
    if vocabulary.flag("remove_extra_whitespaces", False):
        marks += [normalizers.Replace(Regex(r"\A +| +\z"), ""), normalizers.Replace(Regex(" {2,}"), " ")]
    steps: list[decoders.Decoder] = [decoders.Replace(MARK, " "), decoders.ByteFallback(), decoders.Fuse()]
    if vocabulary.flag("add_space_prefix", True):
        marks.append(normalizers.Prepend(MARK))
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence([*marks, normalizers.Replace(" ", MARK)])
    backend.decoder = decoders.Sequence(steps)
    return backend


def _as_text(token: str, kind: float) -> str:
    """Gemma's tokens of several spaces are found in the text itself, where spaces are not yet marked."""
    return token.replace(MARK, " ") if kind == USER_DEFINED else token


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best result first. Only normal tokens take part.

    Raises:
        ModelFileError: there are too many letters to try, or ways to join them.
    """
    normal = {
        token: (-score, number)
        for number, (token, score, kind) in enumerate(zip(tokens, scores, types, strict=True))
        if kind == NORMAL
    }
    letters = sum(map(len, normal))
    if letters > MAX_LETTERS:
        raise ModelFileError(f"the tokens have {letters} letters; at most {MAX_LETTERS} are allowed")
    ranked = list(islice(_joins(normal), MAX_MERGES + 1))
    if len(ranked) > MAX_MERGES:
        raise ModelFileError(f"the tokens can be joined in more than {MAX_MERGES} ways")
    ranked.sort()
    return [(left, right) for _, left, right in ranked]


_Rank = tuple[float, int]


def _joins(ranks: Mapping[str, _Rank]) -> Iterator[tuple[_Rank, str, str]]:
    for token, rank in ranks.items():
        for cut in range(1, len(token)):
            left, right = token[:cut], token[cut:]
            if left in ranks and right in ranks:
                yield rank, left, right


def _bpe(
    tokens: Sequence[str],
    merges: list[tuple[str, str]],
    *,
    whole_words: bool = False,
    unknown: str | None = None,
    byte_fallback: bool = False,
) -> Tokenizer:
    vocab = {token: number for number, token in enumerate(tokens)}
    with no_panic("the file's tokens and merges break the tokenizer library", ModelFileError):
        model = models.BPE(
            vocab=vocab,
            merges=merges,
            ignore_merges=whole_words,
            byte_fallback=byte_fallback,
            fuse_unk=byte_fallback,
            unk_token=unknown,
        )
    return Tokenizer(model)


def _add_special(backend: Tokenizer, vocabulary: Vocabulary, strips_after: frozenset[str]) -> None:
    """Marks the tokens that are matched whole in a text, before it is split."""

    def added(tokens: Sequence[str]) -> list[AddedToken]:
        return [AddedToken(token, normalized=False, rstrip=token in strips_after) for token in tokens]

    whole = [_as_text(token, USER_DEFINED) for token in vocabulary.of_type(USER_DEFINED)]
    with no_panic("the file's special tokens break the tokenizer library", ModelFileError):
        backend.add_special_tokens(added(vocabulary.of_type(CONTROL, UNKNOWN)))
        backend.add_tokens(added(whole))
