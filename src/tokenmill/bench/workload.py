"""What is asked: a seeded, endless sequence of prompts and answer lengths."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from dataclasses import dataclass, field

from tokenmill.bench.distribution import Distribution, parse, seeded
from tokenmill.core.errors import ConfigError

# Short words that the usual vocabularies hold whole, so that words and tokens count nearly alike.
_WORDS = """
the of and to in is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so what up
about into than them can only other time new some could these two may first then do
"""
WORDS = tuple(_WORDS.split())
FIRST_ID = 100


@dataclass(frozen=True)
class Item:
    """One request to send. `prompt` is text or token ids."""

    index: int
    prompt: str | list[int]
    max_tokens: int


@dataclass(frozen=True)
class Workload:
    """Item `i` depends on the seed and `i` alone, whatever order the items are sent in.

    Attributes:
        prompt_tokens, output_tokens: lengths; a text prompt has so many words, which is near the number
            of tokens (the server's usage says the true one).
        shared_prefix: share of every prompt that is the beginning of one common text.
        token_ids: prompts are token ids from 100 to vocab_size - 1, exact in length.
        prompts: given prompts, used in turn instead.
    """

    prompt_tokens: Distribution = field(default_factory=lambda: parse(128))
    output_tokens: Distribution = field(default_factory=lambda: parse(128))
    seed: int = 0
    shared_prefix: float = 0.0
    token_ids: bool = False
    vocab_size: int = 30_000
    prompts: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.shared_prefix <= 1:
            raise ConfigError(f"shared_prefix must be from 0 to 1, not {self.shared_prefix}")
        if self.vocab_size <= FIRST_ID:
            raise ConfigError(f"vocab_size must be above {FIRST_ID}, not {self.vocab_size}")

    def items(self) -> Iterator[Item]:
        return (self.item(index) for index in itertools.count())

    def item(self, index: int) -> Item:
        rng = seeded(self.seed, "item", index)
        length = self.prompt_tokens.sample_int(rng, least=1)
        output = self.output_tokens.sample_int(rng, least=1)
        if self.prompts:
            return Item(index, self.prompts[index % len(self.prompts)], output)
        shared = round(length * self.shared_prefix)
        ids = self._draw(rng, length - shared)
        if shared:
            ids = self._draw(seeded(self.seed, "prefix"), shared) + ids
        if self.token_ids:
            return Item(index, ids, output)
        return Item(index, " ".join(WORDS[number % len(WORDS)] for number in ids), output)

    def _draw(self, rng: random.Random, count: int) -> list[int]:
        return rng.choices(range(FIRST_ID, self.vocab_size), k=count)
