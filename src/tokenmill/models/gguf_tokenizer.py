"""Builds a tokenizer from the metadata of a GGUF file.

GGUF keeps vocabulary, merges or scores, and token types, but names the rule that splits text before
merging only by a word (`tokenizer.ggml.pre`); what the words mean is the table `SPLITS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.end_tokens import gguf_ends
from tokenmill.models.fields import Fields
from tokenmill.models.tokenizer_parts import TokenizerParts, no_panic

MAX_TOKENS = 1 << 21
MAX_TOKEN_CHARS = 1024
NORMAL, UNKNOWN, CONTROL, USER_DEFINED = 1, 2, 3, 4

_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_QWEN2 = _LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
_TEKKEN = (
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
    r"|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


@dataclass(frozen=True)
class Split:
    """How text is cut before merging.

    Attributes:
        digits: every digit stands alone, cut out before the pattern is applied.
        whole_words: a cut piece that is a token is taken as it is, without merging.
        nfc: text is brought to Unicode normal form C first.
        add_bos: BOS begins a text unless the file says otherwise.
    """

    pattern: str
    digits: bool = False
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False


SPLITS: Mapping[str, Split] = {
    "default": Split(_GPT2),
    "gpt-2": Split(_GPT2),
    "smollm": Split(_GPT2, digits=True),
    "llama3": Split(_LLAMA3, whole_words=True, add_bos=True),
    "llama-v3": Split(_LLAMA3, whole_words=True, add_bos=True),
    "llama-bpe": Split(_LLAMA3, whole_words=True, add_bos=True),
    "tekken": Split(_TEKKEN, whole_words=True, add_bos=True),
    "qwen2": Split(_QWEN2, nfc=True),
}


def read_gguf(metadata: Mapping[str, object]) -> TokenizerParts:
    """The tokenizer a GGUF file describes.

    Raises:
        ModelFileError: a key is missing, of the wrong type, or names something unknown.
    """
    kind = metadata.get("tokenizer.ggml.model")
    tokens = _strings(metadata, "tokenizer.ggml.tokens")
    types = _numbers(metadata, "tokenizer.ggml.token_type", len(tokens)) or [NORMAL] * len(tokens)
    if kind == "gpt2":
        split = _split(metadata)
        backend, add_bos = _byte_level(tokens, _merges(metadata), split), split.add_bos
    elif kind == "llama":
        backend, add_bos = _sentencepiece(metadata, tokens, types), True
    else:
        raise ModelFileError(f"tokenizer.ggml.model is {show(kind)}; known are gpt2 and llama")
    _add_special(backend, tokens, types)
    fields = Fields("the file", metadata)
    bos_id = next(iter(fields.token_ids("tokenizer.ggml.bos_token_id", len(tokens))), None)
    ends = gguf_ends(fields, len(tokens))
    prefix: tuple[int, ...] = ()
    if _flag(metadata, "add_bos_token", add_bos and bos_id is not None):
        if bos_id is None:
            raise ModelFileError("the file wants a BOS token but has no tokenizer.ggml.bos_token_id")
        prefix = (bos_id,)
    return TokenizerParts(backend, bos_id, ends, prefix)


def _byte_level(tokens: Sequence[str], merges: list[tuple[str, str]], split: Split) -> Tokenizer:
    backend = _bpe(tokens, merges, whole_words=split.whole_words)
    if split.nfc:
        backend.normalizer = normalizers.NFC()
    # Digits first, then the pattern: the other order would leave a space glued to a digit's front.
    steps: list[pre_tokenizers.PreTokenizer] = []
    if split.digits:
        steps.append(pre_tokenizers.Digits(individual_digits=True))
    steps.append(pre_tokenizers.Split(Regex(split.pattern), behavior="isolated"))
    steps.append(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False))
    backend.pre_tokenizer = pre_tokenizers.Sequence(steps)
    backend.decoder = decoders.ByteLevel()
    return backend


def _sentencepiece(
    metadata: Mapping[str, object], tokens: Sequence[str], types: Sequence[float]
) -> Tokenizer:
    """BPE by scores: SentencePiece always joins the pair whose result scores highest."""
    scores = _numbers(metadata, "tokenizer.ggml.scores", len(tokens))
    if scores is None:
        raise ModelFileError("the file has no tokenizer.ggml.scores, which a llama tokenizer needs")
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == UNKNOWN), None)
    backend = _bpe(tokens, merges_from_scores(tokens, scores, types), unknown=unknown, byte_fallback=True)
    marks: list[normalizers.Normalizer] = [normalizers.Replace(" ", "\u2581")]
    steps: list[decoders.Decoder] = [
        decoders.Replace("\u2581", " "),
        decoders.ByteFallback(),
        decoders.Fuse(),
    ]
    if _flag(metadata, "add_space_prefix", True):
        marks.insert(0, normalizers.Prepend("\u2581"))
        steps.append(decoders.Strip(" ", 1, 0))
    backend.normalizer = normalizers.Sequence(marks)
    backend.decoder = decoders.Sequence(steps)
    return backend


def merges_from_scores(
    tokens: Sequence[str], scores: Sequence[float], types: Sequence[float]
) -> list[tuple[str, str]]:
    """Every way to join two tokens into a third, best result first. Only normal tokens take part."""
    normal = {
        token: (-score, number)
        for number, (token, score, kind) in enumerate(zip(tokens, scores, types, strict=True))
        if kind == NORMAL
    }
    ranked = [
        (rank, token[:cut], token[cut:])
        for token, rank in normal.items()
        for cut in range(1, len(token))
        if token[:cut] in normal and token[cut:] in normal
    ]
    ranked.sort()
    return [(left, right) for _, left, right in ranked]


def _bpe(
    tokens: Sequence[str],
    merges: list[tuple[str, str]],
    *,
    whole_words: bool = False,
    unknown: str | None = None,
    byte_fallback: bool = False,
) -> Tokenizer:
    vocab = {token: number for number, token in enumerate(tokens)}
    for left, right in merges:
        if not (left in vocab and right in vocab and left + right in vocab):
            raise ModelFileError(f"the merge of {show(left)} and {show(right)} does not fit the tokens")
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


def _add_special(backend: Tokenizer, tokens: Sequence[str], types: Sequence[float]) -> None:
    """Marks the tokens that are matched whole in a text, before it is split."""

    def added(*kinds: int) -> list[AddedToken]:
        pairs = zip(tokens, types, strict=True)
        return [AddedToken(token, normalized=False) for token, kind in pairs if token and kind in kinds]

    backend.add_special_tokens(added(CONTROL, UNKNOWN))
    backend.add_tokens(added(USER_DEFINED))


def _split(metadata: Mapping[str, object]) -> Split:
    name = metadata.get("tokenizer.ggml.pre", "default")
    found = SPLITS.get(name) if isinstance(name, str) else None
    if found is None:
        raise ModelFileError(f"tokenizer.ggml.pre is {show(name)}; known are {', '.join(sorted(SPLITS))}")
    return found


def _strings(metadata: Mapping[str, object], key: str) -> list[str]:
    value = metadata.get(key)
    if not isinstance(value, (list, tuple)) or not value or not all(type(item) is str for item in value):
        raise ModelFileError(f"{key} must be a list of strings")
    if len(value) > MAX_TOKENS:
        raise ModelFileError(f"{key} has {len(value)} entries; at most {MAX_TOKENS} are allowed")
    longest = max(map(len, value))
    if longest > MAX_TOKEN_CHARS:
        raise ModelFileError(
            f"{key} has an entry of {longest} characters; at most {MAX_TOKEN_CHARS} are allowed"
        )
    return list(value)


def _numbers(metadata: Mapping[str, object], key: str, length: int) -> Sequence[float] | None:
    value = metadata.get(key)
    if value is None:
        return None
    if not isinstance(value, (list, tuple)) or not all(type(item) in (int, float) for item in value):
        raise ModelFileError(f"{key} must be a list of numbers")
    if len(value) != length:
        raise ModelFileError(f"{key} has {len(value)} entries for {length} tokens")
    return value


def _merges(metadata: Mapping[str, object]) -> list[tuple[str, str]]:
    merges: list[tuple[str, str]] = []
    for line in _strings(metadata, "tokenizer.ggml.merges"):
        left, space, right = line.partition(" ")
        if not (left and space and right):
            raise ModelFileError(f"tokenizer.ggml.merges holds {show(line)}, which is not two tokens")
        merges.append((left, right))
    return merges


def _flag(metadata: Mapping[str, object], name: str, default: bool) -> bool:
    value = metadata.get(f"tokenizer.ggml.{name}", default)
    if not isinstance(value, bool):
        raise ModelFileError(f"tokenizer.ggml.{name} must be true or false, not {show(value)}")
    return value
