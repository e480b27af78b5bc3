"""The few sampling options of `run` and `chat`."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenmill.core import bounds
from tokenmill.core.request import SamplingParams

DEFAULT_MAX_TOKENS = 512

MaxTokens = Annotated[
    int, typer.Option("--max-tokens", metavar="INTEGER", help="Tokens to answer with at most.")
]
Temperature = Annotated[
    float, typer.Option("--temperature", metavar="NUMBER", help="0 always takes the likeliest token.")
]
Seed = Annotated[
    int | None, typer.Option("--seed", metavar="INTEGER", help="Same seed, same prompt, same text.")
]


def sampling(max_tokens: int, temperature: float, seed: int | None) -> SamplingParams:
    """The options as one value.

    Raises:
        InvalidRequest: a value outside its row of `core.bounds`.
    """
    return SamplingParams(
        max_tokens=bounds.integer("max_tokens", max_tokens, param="--max-tokens"),
        temperature=bounds.number("temperature", temperature, param="--temperature"),
        seed=None if seed is None else bounds.integer("seed", seed, param="--seed"),
    )
