"""The process in which a grammar is compiled first: `python -m tokenmill.engine.grammar.child`.

A grammar may overflow the stack, take all memory or never end; here that harms nobody. The process reads its
setup, says that it is ready, and then answers one grammar after another, over its standard streams, until its
input ends. It dies over a grammar that exceeds the limits: of a signal, or with the status `OUT_OF_MEMORY`.
Any other status but 0 is a fault of this program.
"""

from __future__ import annotations

import math
import os
import resource
import sys
import threading

import msgspec
from llguidance import LLMatcher, LLTokenizer

from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.build import GrammarError, build_matcher
from tokenmill.engine.grammar.frames import read_frame, write_frame
from tokenmill.engine.grammar.messages import OUT_OF_MEMORY, Setup, Verdict
from tokenmill.engine.grammar.vocabulary import build_tokenizer

# Less than any thread of the server has, so that what passes here does not overflow there.
STACK_BYTES = 1 << 20
# Tokens a grammar is followed for.
WALK = 16


def main() -> None:
    os.set_blocking(sys.stderr.fileno(), False)  # nobody reads it before the end
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    threading.stack_size(STACK_BYTES)
    status = 1

    def work() -> None:
        nonlocal status
        try:
            _serve()
            status = 0
        except MemoryError:
            status = OUT_OF_MEMORY

    worker = threading.Thread(target=work)
    worker.start()
    worker.join()
    sys.exit(status)


def _serve() -> None:
    source, sink = sys.stdin.fileno(), sys.stdout.fileno()
    frame = read_frame(source)
    if frame is None:
        return
    setup = msgspec.msgpack.decode(frame, type=Setup)
    tokenizer = build_tokenizer(setup.vocabulary)
    _limit(resource.RLIMIT_AS, _address_space() + setup.limits.memory_bytes)
    write_frame(sink, msgspec.msgpack.encode(Verdict()))
    while (frame := read_frame(source)) is not None:
        _limit(resource.RLIMIT_CPU, math.ceil(_cpu_s() + setup.limits.cpu_s))
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


def _cpu_s() -> float:
    """Seconds of processor time this process has taken so far."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def _address_space() -> int:
    """Bytes of address space this process has."""
    with open("/proc/self/statm") as file:  # noqa: PTH123  # not worth an import
        return int(file.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")


if __name__ == "__main__":
    main()
