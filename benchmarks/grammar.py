"""What grammars cost: preparing the vocabulary, compiling, and each token.

Walks random allowed tokens of the small model's vocabulary through some grammars, ordinary and hostile ones.
`row` is all that a token costs beside the model: mask, applying it to the logits, taking the token.

    python benchmarks/grammar.py
"""

from __future__ import annotations

import json
import random
import resource
import time
from collections.abc import Callable
from typing import TypeVar

import torch

from tokenmill.core.errors import TokenmillError
from tokenmill.core.home import default_home
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.build import build_matcher
from tokenmill.engine.grammar.checker import Checker
from tokenmill.engine.grammar.compiler import GrammarCompiler
from tokenmill.engine.grammar.masks import constrain
from tokenmill.engine.grammar.messages import ChildLimits
from tokenmill.engine.grammar.vocabulary import build_tokenizer, grammar_vocabulary
from tokenmill.models.catalogue import DEFAULT_MODEL
from tokenmill.models.pull import resolve
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer import Tokenizer, load_tokenizer

TOKENS = 300
Result = TypeVar("Result")

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string"},
        "age": {"type": "integer"},
        "tags": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
FIELDS = {f"field{n}": {"type": "string", "maxLength": 100} for n in range(200)}
GRAMMARS = {
    "person": Grammar("json_schema", json.dumps(PERSON)),
    "any object": Grammar("json_schema", '{"type": "object"}'),
    "200 fields": Grammar(
        "json_schema", json.dumps({"type": "object", "properties": FIELDS, "required": [*FIELDS]})
    ),
    "enum of 4000": Grammar("json_schema", json.dumps({"enum": [f"value-{n * 7919}" for n in range(3500)]})),
    "date regex": Grammar("regex", "[0-9]{4}-[0-9]{2}-[0-9]{2}T[0-9:]{8}Z"),
    "exponential": Grammar("regex", "(a{1,1000}){1,1000}"),
    "many states": Grammar("regex", "(.*a.{20})*"),
    "ambiguous": Grammar("lark", 'start: start start | "a" | ""\n'),
}


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    began = time.perf_counter()
    result = work()
    return result, time.perf_counter() - began


def main() -> None:
    torch.set_num_threads(1)
    path = resolve(DEFAULT_MODEL, home=default_home(), progress=lambda _: None)
    source = open_model(path)
    tokenizer = load_tokenizer(source.tokenizer_files, source.spec.vocab_size)
    vocabulary, read_s = timed(lambda: grammar_vocabulary(tokenizer, tokenizer.eos_ids))
    built, build_s = timed(lambda: build_tokenizer(vocabulary))
    print(f"vocabulary of {tokenizer.vocab_size}: read {read_s * 1e3:.0f} ms, built {build_s * 1e3:.0f} ms")
    checker = Checker(vocabulary, ChildLimits())
    first = Grammar("regex", "a")
    print(f"child: start and first verdict {timed(lambda: checker.check(first))[1] * 1e3:.0f} ms, ", end="")
    print(f"next verdict {timed(lambda: checker.check(Grammar('regex', 'b')))[1] * 1e3:.1f} ms")
    checker.rest()
    compiler = GrammarCompiler(tokenizer, tokenizer.eos_ids)
    compiler.matchers(first, 1).result()
    print(
        f"{'grammar':14}{'compile ms':>11}{'all ms':>8}{'tokens':>8}"
        f"{'row us':>8}{'p99 us':>8}{'worst ms':>9}{'MiB':>6}"
    )
    for name, grammar in GRAMMARS.items():
        alone = timed(lambda g=grammar: build_matcher(built, g.kind, g.source))[1]  # type: ignore[misc]  # bound
        report(name, alone, compiler, grammar, tokenizer)
    compiler.close()


def report(
    name: str, alone: float, compiler: GrammarCompiler, grammar: Grammar, tokenizer: Tokenizer
) -> None:
    (matcher,), whole = timed(lambda: compiler.matchers(grammar, 1).result())
    chance = random.Random(1)
    logits = torch.empty(1, tokenizer.vocab_size)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    took: list[float] = []
    end = ""
    while len(took) < TOKENS and not matcher.complete and not end:
        logits.zero_()
        began = time.perf_counter()
        failed = constrain(logits, {0: matcher}, {0: matcher.end_ids})
        masked = time.perf_counter() - began
        if failed:
            end = str(failed[0])
            break
        token = int(chance.choice((logits[0] == 0).nonzero()))
        try:
            took.append(masked + timed(lambda: matcher.accept(token))[1])  # noqa: B023  # called at once
        except TokenmillError as fault:
            end = str(fault)
    took.sort()
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024
    mean = sum(took) / max(1, len(took))
    p99 = took[int(len(took) * 0.99)] if took else 0.0
    print(
        f"{name:14}{alone * 1e3:11.1f}{whole * 1e3:8.1f}{len(took):8}{mean * 1e6:8.0f}{p99 * 1e6:8.0f}"
        f"{(took or [0.0])[-1] * 1e3:9.1f}{grown:6.0f}  {end}"
    )


if __name__ == "__main__":
    main()
