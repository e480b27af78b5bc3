"""The process in which a grammar is compiled first: `python -m tokenmill.engine.grammar.child`.

A grammar may overflow the stack, take all memory or never end; here that harms nobody. The process reads the
vocabulary, says that it is ready, and then answers one grammar after another, over its standard streams.
It ends with its input, or after `IDLE_S` seconds without a grammar.
"""

from __future__ import annotations

import os
import resource
import select
import sys
import threading

import msgspec
from llguidance import LLMatcher, LLTokenizer

from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.build import GrammarError, build_matcher
from tokenmill.engine.grammar.frames import read_frame, write_frame
from tokenmill.engine.grammar.vocabulary import GrammarVocabulary, build_tokenizer

IDLE_S = 300.0
# Beyond what the vocabulary takes.
MEMORY_BYTES = 512 << 20
CPU_S = 3
# Less than any thread of the server has, so that what passes here does not overflow there.
STACK_BYTES = 1 << 20
# Tokens a grammar is followed for.
WALK = 16


class Verdict(msgspec.Struct, frozen=True):
    """`error` is the grammar's fault; None when it can be used."""

    error: str | None = None


def main() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    threading.stack_size(STACK_BYTES)
    worker = threading.Thread(target=_serve)
    worker.start()
    worker.join()


def _serve() -> None:
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    vocabulary = read_frame(source)
    if vocabulary is None:
        return
    tokenizer = build_tokenizer(msgspec.msgpack.decode(vocabulary, type=GrammarVocabulary))
    _limit(resource.RLIMIT_AS, _address_space() + MEMORY_BYTES)
    write_frame(sink, msgspec.msgpack.encode(Verdict()))
    while select.select([source], [], [], IDLE_S)[0]:
        frame = read_frame(source)
        if frame is None:
            return
        usage = resource.getrusage(resource.RUSAGE_SELF)
        _limit(resource.RLIMIT_CPU, int(usage.ru_utime + usage.ru_stime) + CPU_S)
        verdict = _judge(tokenizer, msgspec.msgpack.decode(frame, type=Grammar))
        write_frame(sink, msgspec.msgpack.encode(verdict))


def _judge(tokenizer: LLTokenizer, grammar: Grammar) -> Verdict:
    try:
        _walk(build_matcher(tokenizer, grammar.kind, grammar.source).deep_copy(), tokenizer)
    except GrammarError as error:
        return Verdict(str(error))
    return Verdict()


def _walk(matcher: LLMatcher, tokenizer: LLTokenizer) -> None:
    """Follows the first token that may come, some tokens far; a limit hit there is no verdict."""
    ends = sum(1 << token for token in set(tokenizer.eos_tokens))
    for _ in range(WALK):
        allowed = int.from_bytes(matcher.compute_bitmask(), "little") & ~ends
        if matcher.is_error() or not allowed:
            return
        matcher.consume_token((allowed & -allowed).bit_length() - 1)


def _limit(kind: int, value: int) -> None:
    resource.setrlimit(kind, (value, resource.getrlimit(kind)[1]))


def _address_space() -> int:
    """Bytes of address space this process has."""
    with open("/proc/self/statm") as file:  # noqa: PTH123  # not worth an import
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
