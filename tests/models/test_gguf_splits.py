"""The words of `tokenizer.ggml.pre`: pieces equal to the rule each stands for, as others write it down."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from tokenizers import Regex, pre_tokenizers

from support.texts import RUNS, texts
from tokenmill.core.errors import ModelFileError
from tokenmill.models.gguf_splits import SPLITS, split_of

TEXTS = [*texts(11, 2000), *RUNS]
BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)

# llama.cpp spells letter case out: '[sS] for (?i:'s).
ANY_CASE = r"(?:'[sS]|'[tT]|'[rR][eE]|'[vV][eE]|'[mM]|'[lL][lL]|'[dD])"
WORD, MARKS = r"[^\r\n\p{L}\p{N}]?\p{L}+", r" ?[^\s\p{L}\p{N}]+[\r\n]*"
SPACE = r"\s*[\r\n]+|\s+(?!\S)|\s+"
DEEPSEEK3 = (
    r"\p{N}{1,3}",
    "[一-龥぀-ゟ゠-ヿ]+",
    r"[!\"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+"
    r"| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+",
)
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)"
# Kimi's own pattern: words by case as GPT-4o's, with Han apart.
KIMI = (
    r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*"
    rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]+{ANY_CASE}?"
    r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+"
    rf"[\p{{Ll}}\p{{Lm}}\p{{Lo}}\p{{M}}&&[^\p{{Han}}]]*{ANY_CASE}?"
    r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _cuts(*patterns: str) -> pre_tokenizers.PreTokenizer:
    cuts = [pre_tokenizers.Split(Regex(pattern), behavior="isolated") for pattern in patterns]
    return pre_tokenizers.Sequence([*cuts, BYTES])


def _digits_then_words() -> pre_tokenizers.PreTokenizer:
    """As in the tokenizer.json of StarCoder, SmolLM and Command R."""
    digits = pre_tokenizers.Digits(individual_digits=True)
    return pre_tokenizers.Sequence([digits, pre_tokenizers.ByteLevel(add_prefix_space=False)])


def _falcon() -> pre_tokenizers.PreTokenizer:
    """As in Falcon's tokenizer.json: digits are cut out of what the bytes look like."""
    return pre_tokenizers.Sequence(
        [
            pre_tokenizers.Punctuation(behavior="contiguous"),
            pre_tokenizers.ByteLevel(add_prefix_space=False),
            pre_tokenizers.Digits(individual_digits=False),
            pre_tokenizers.Split(Regex("[0-9][0-9][0-9]"), behavior="isolated"),
        ]
    )


def _deepseek_coder() -> pre_tokenizers.PreTokenizer:
    cuts = [r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", "[一-龥ࠀ-一가-\ud7ff]+"]
    steps = [pre_tokenizers.Split(Regex(cut), behavior="isolated") for cut in cuts]
    return pre_tokenizers.Sequence([*steps, pre_tokenizers.Digits(individual_digits=True), BYTES])


def _known_to_transformers(word: str) -> pre_tokenizers.PreTokenizer:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    return _cuts(GGUF_PRE_TOKENIZER_SPLITS[word])


# A word of every family, and its rule.
RULES: dict[str, Callable[[], pre_tokenizers.PreTokenizer]] = {
    "default": lambda: _cuts(r"[\p{P}\$\+<=>\^~\|]+", GPT2, r"\p{N}+", "[0-9][0-9][0-9]"),
    "gpt-2": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "olmo": lambda: pre_tokenizers.ByteLevel(add_prefix_space=False),
    "smollm": _digits_then_words,
    "command-r": _digits_then_words,
    "llama-bpe": lambda: _known_to_transformers("llama-bpe"),
    "dbrx": lambda: _cuts(rf"{ANY_CASE}|{WORD}|\p{{N}}{{1,3}}|{MARKS}|{SPACE}"),
    "qwen2": lambda: _known_to_transformers("qwen2"),
    "stablelm2": lambda: _cuts(rf"{ANY_CASE}|{WORD}|\p{{N}}|{MARKS}|{SPACE}"),
    "qwen35": lambda: _known_to_transformers("qwen35"),
    "tekken": lambda: _known_to_transformers("tekken"),
    "gpt-4o": lambda: _known_to_transformers("gpt-4o"),
    "kimi-k2": lambda: _cuts(KIMI),
    "deepseek-v3": lambda: _cuts(*DEEPSEEK3),
    "deepseek-coder": _deepseek_coder,
    "falcon": _falcon,
    "bailingmoe": lambda: _cuts(
        rf"'(?:[sSdDmMtT]|[lL][lL]|[vV][eE]|[rR][eE])|{WORD}|\p{{N}}|{MARKS}|\s*[\r\n]|\s+(?!\S)|\s+"
    ),
    "seed-coder": lambda: _cuts(rf"{ANY_CASE}|{WORD}|\p{{N}}| ?[^\s\p{{L}}\p{{N}}\r\n]+|{SPACE}"),
}


@pytest.mark.parametrize("word", RULES)
def test_pieces_equal_those_of_the_rule(word: str) -> None:
    rule, split = RULES[word](), SPLITS[word].pre_tokenizer()
    for text in TEXTS:
        assert split.pre_tokenize_str(text) == rule.pre_tokenize_str(text), text


def test_every_word_belongs_to_a_family_that_is_checked() -> None:
    checked = [SPLITS[word] for word in RULES]
    assert all(any(split is known for known in checked) for split in SPLITS.values())


def test_words_transformers_knows_mean_the_same_here() -> None:
    from transformers.integrations.gguf.gguf_tokenizer_mapping import GGUF_PRE_TOKENIZER_SPLITS

    both = SPLITS.keys() & GGUF_PRE_TOKENIZER_SPLITS.keys()
    assert len(both) >= 18
    for word in both:
        assert SPLITS[word].steps == (GGUF_PRE_TOKENIZER_SPLITS[word],), word


@pytest.mark.parametrize("word", ["klingon", "", "Qwen2", 7, None, ["qwen2"]])
def test_another_word_is_refused_with_the_known_ones(word: object) -> None:
    with pytest.raises(ModelFileError, match=r"known are a\.x-4\.0, bailingmoe, .*tekken, trillion"):
        split_of(word)
