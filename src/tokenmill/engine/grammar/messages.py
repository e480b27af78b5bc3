"""What the server and the process that compiles a grammar first say to each other."""

from __future__ import annotations

import msgspec

from tokenmill.engine.grammar.vocabulary import GrammarVocabulary

# Exit status of a child that Python told it has no memory left; every other death of that kind is a signal.
OUT_OF_MEMORY = 12


class ChildLimits(msgspec.Struct, frozen=True):
    """What one grammar may take.

    Attributes:
        cpu_s: processor time; the kernel counts whole seconds, so it may be up to one more.
        memory_bytes: address space beyond what the vocabulary takes.
    """

    cpu_s: int = 2
    memory_bytes: int = 512 << 20


class Setup(msgspec.Struct, frozen=True):
    """The first message; answered by an empty verdict once the child is ready."""

    vocabulary: GrammarVocabulary
    limits: ChildLimits


class Verdict(msgspec.Struct, frozen=True):
    """On a grammar. `error` is the grammar's fault; None when it can be used."""

    error: str | None = None
