"""How byte-level tokenizers cut text before merging, by the word in `tokenizer.ggml.pre`.

A GGUF file names this rule and does not hold it. The words are those of llama.cpp's `llama-vocab.cpp`; the
rule behind each is the one in the model's own tokenizer.json, from which llama.cpp took it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum, auto

from tokenizers import Regex, pre_tokenizers

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError


class Step(Enum):
    """A cut that is not a regular expression, or not quite the one it looks like."""

    DIGITS = auto()  # every digit alone
    DIGIT_RUNS = auto()
    PUNCTUATION_RUNS = auto()
    BYTES = auto()  # no cut: from here on every byte is a letter; the last step where it is not named


@dataclass(frozen=True)
class Split:
    """How text is cut before merging.

    Attributes:
        steps: each cuts the pieces the one before it left: a regular expression, whose matches and what lies
            between them become pieces, or a `Step`.
        whole_words: a cut piece that is a token is taken as it is, without merging.
        nfc: text is brought to Unicode normal form C first.
        add_bos: BOS begins a text unless the file says otherwise.
    """

    steps: tuple[str | Step, ...]
    whole_words: bool = False
    nfc: bool = False
    add_bos: bool = False

    def pre_tokenizer(self) -> pre_tokenizers.PreTokenizer:
        steps = self.steps if Step.BYTES in self.steps else (*self.steps, Step.BYTES)
        return pre_tokenizers.Sequence(
            [
                _STEPS[step]()
                if isinstance(step, Step)
                else pre_tokenizers.Split(Regex(step), behavior="isolated")
                for step in steps
            ]
        )


_STEPS: Mapping[Step, Callable[[], pre_tokenizers.PreTokenizer]] = {
    Step.DIGITS: lambda: pre_tokenizers.Digits(individual_digits=True),
    Step.DIGIT_RUNS: lambda: pre_tokenizers.Digits(individual_digits=False),
    Step.PUNCTUATION_RUNS: lambda: pre_tokenizers.Punctuation(behavior="contiguous"),
    Step.BYTES: lambda: pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
}

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_END = r"|\s*[\r\n]+|\s+(?!\S)|\s+"
_ASCII_PUNCTUATION = r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~]"""
_HAN_AND_KANA = r"[\x{4E00}-\x{9FA5}\x{3040}-\x{309F}\x{30A0}-\x{30FF}]+"


def _words(digits: str) -> str:
    """Words with one leading mark, runs of symbols with the newlines after them; GPT-4's pattern."""
    return rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|{digits}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*{_END}"


def _cased_words(tail: str, digits: str, ending: str = r"[\r\n/]*", but: str = "") -> str:
    """Words cut also where lower case turns to upper; `tail` belongs to a word, `but` never does."""
    upper, lower = (rf"[\p{{{first}}}\p{{Lm}}\p{{Lo}}\p{{M}}{but}]" for first in (r"Lu}\p{Lt", "Ll"))
    start = r"[^\r\n\p{L}\p{N}]?"
    return (
        rf"{start}{upper}*{lower}+{tail}|{start}{upper}+{lower}*{tail}"
        rf"|{digits}| ?[^\s\p{{L}}\p{{N}}]+{ending}{_END}"
    )


_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_UP_TO_THREE, _ONE = r"\p{N}{1,3}", r"\p{N}"
_LLAMA3 = _words(_UP_TO_THREE)
_QWEN2 = _words(_ONE)
_QWEN35 = _CONTRACTION + r"|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*" + _END
_TEKKEN = _cased_words("", _ONE)
_GPT4O = _cased_words(f"{_CONTRACTION}?", _UP_TO_THREE)
_KIMI = r"[\p{Han}]+|" + _cased_words(
    f"{_CONTRACTION}?", _UP_TO_THREE, ending=r"[\r\n]*", but=r"&&[^\p{Han}]"
)
_DEEPSEEK3 = (
    _UP_TO_THREE,
    _HAN_AND_KANA,
    rf"{_ASCII_PUNCTUATION}[A-Za-z]+|[^\r\n\p{{L}}\p{{P}}\p{{S}}]?[\p{{L}}\p{{M}}]+"
    rf"| ?[\p{{P}}\p{{S}}]+[\r\n]*{_END}",
)
_DEEPSEEK_CODER = (
    r"[\r\n]",
    r"\s?\p{L}+",
    r"\s?\p{P}+",
    r"[\x{4E00}-\x{9FA5}\x{0800}-\x{4E00}\x{AC00}-\x{D7FF}]+",
    Step.DIGITS,
)
_BAILING = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*"
    r"|\s*[\r\n]|\s+(?!\S)|\s+"
)
_SEED = rf"{_CONTRACTION}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1}}| ?[^\s\p{{L}}\p{{N}}\r\n]+{_END}"
_FALCON = (Step.PUNCTUATION_RUNS, _GPT2, Step.BYTES, Step.DIGIT_RUNS, r"[0-9][0-9][0-9]")
# What llama.cpp does where a file names no rule: near Falcon's.
_DEFAULT = (r"[\p{P}$+<=>^~|]+", _GPT2, r"\p{N}+", r"[0-9][0-9][0-9]")

_FAMILIES: tuple[tuple[str, Split], ...] = (
    ("default", Split(_DEFAULT)),
    (
        "gpt-2 phi-2 gigachat a.x-4.0 mellum exaone4 jais trillion granite-docling",
        Split((_GPT2,)),
    ),
    ("olmo mpt", Split((_GPT2,), nfc=True)),
    ("smollm starcoder refact codeshell exaone minerva-7b mellum2", Split((Step.DIGITS, _GPT2))),
    ("command-r", Split((Step.DIGITS, _GPT2), nfc=True)),
    (
        "llama3 llama-v3 llama-bpe falcon3 falcon-h1 pixtral midm-2.0 lfm2",
        Split((_LLAMA3,), whole_words=True, add_bos=True),
    ),
    ("dbrx smaug-bpe chatglm-bpe glm4", Split((_LLAMA3,))),
    ("qwen2 deepseek-r1-qwen", Split((_QWEN2,), nfc=True)),
    ("stablelm2 hunyuan solar-open grok-2 megrez kormo", Split((_QWEN2,))),
    ("qwen35", Split((_QWEN35,), nfc=True)),
    ("tekken", Split((_TEKKEN,), whole_words=True, add_bos=True)),
    ("gpt-4o llama4 kanana2 minimax-m2", Split((_GPT4O,))),
    ("kimi-k2", Split((_KIMI,))),
    ("deepseek-v3 hunyuan-dense joyai-llm", Split(_DEEPSEEK3)),
    ("deepseek-coder", Split(_DEEPSEEK_CODER)),
    ("falcon", Split(_FALCON)),
    ("bailingmoe bailingmoe2 llada-moe", Split((_BAILING,))),
    ("seed-coder", Split((_SEED,))),
)
SPLITS: Mapping[str, Split] = {word: split for words, split in _FAMILIES for word in words.split()}


def split_of(word: object) -> Split:
    """The rule of a word.

    Raises:
        ModelFileError: the word is not known.
    """
    found = SPLITS.get(word) if isinstance(word, str) else None
    if found is None:
        raise ModelFileError(f"tokenizer.ggml.pre is {show(word)}; known are {', '.join(sorted(SPLITS))}")
    return found
