"""Verdicts on grammars by a process that may die over them."""

from __future__ import annotations

import logging
import signal
import threading

import msgspec

from tokenmill.core.bounds import GRAMMAR_KINDS
from tokenmill.core.errors import EngineStopped, InvalidRequest, Overloaded
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.child_process import ChildProcess, Ended
from tokenmill.engine.grammar.messages import OUT_OF_MEMORY, ChildLimits, Setup, Verdict
from tokenmill.engine.grammar.vocabulary import GrammarVocabulary

log = logging.getLogger(__name__)

# On the clock, for a machine that is too busy or a child that hangs. What a grammar may take is counted in
# processor time, by the child's own limits: other processes' load is not the grammar's fault.
START_S = 60.0
CHECK_S = 20.0
# What a grammar makes of a child: too much time, stack or memory. SIGKILL comes from outside.
_DEADLY = {-signal.SIGXCPU, -signal.SIGSEGV, -signal.SIGBUS, -signal.SIGABRT, OUT_OF_MEMORY}


class Checker:
    """One child, started when a grammar comes and none runs. Not thread safe, `stop` and `pid` excepted."""

    def __init__(self, vocabulary: GrammarVocabulary, limits: ChildLimits) -> None:
        self._setup = msgspec.msgpack.encode(Setup(vocabulary, limits))
        self._child: ChildProcess | None = None
        self._lock = threading.Lock()
        self._stopped = False

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        child = self._child
        return None if child is None else child.pid

    def check(self, grammar: Grammar) -> None:
        """Compiles a grammar in the child.

        Raises:
            InvalidRequest: it cannot be used, or is too complex: the child exceeded its limits over it.
            Overloaded: there is no child to check it, or it did not answer, for no fault of the grammar.
            EngineStopped: stopped.
        """
        answer = self._ask(self._running(), msgspec.msgpack.encode(grammar), CHECK_S)
        what = GRAMMAR_KINDS[grammar.kind]
        if isinstance(answer, Ended):
            if answer.status in _DEADLY:
                log.info("the process that checks grammars died over one, with status %d", answer.status)
                raise InvalidRequest(f"the {what} is too complex to compile", code="grammar_too_complex")
            log.error("the process that checks grammars ended with status %d", answer.status)
            raise _unavailable()
        error = msgspec.msgpack.decode(answer, type=Verdict).error
        if error is not None:
            raise InvalidRequest(f"the {what} cannot be used: {error}", code="invalid_grammar")

    def rest(self) -> None:
        """Ends the child, if there is one, and waits for it; the next grammar starts another."""
        if self._child is not None:
            self._end(self._child)

    def stop(self) -> None:
        """Kills the child, in whatever it is doing, and starts none any more. From any thread.

        Whoever is in `check` gets `EngineStopped`. The child is gone then; an idle one is after `rest`.
        """
        with self._lock:
            self._stopped = True
            child = self._child
        if child is not None:
            child.kill()

    def _running(self) -> ChildProcess:
        if self._child is not None and self._child.alive:
            return self._child
        self.rest()
        with self._lock:
            if self._stopped:
                raise EngineStopped("the engine has stopped")
            try:
                child = self._child = ChildProcess()
            except OSError as error:
                log.error("the process that checks grammars cannot be started: %s", error)
                raise _unavailable() from None
        answer = self._ask(child, self._setup, START_S)
        if isinstance(answer, Ended):
            why = (answer.status, answer.last_line)
            log.error("the process that checks grammars ended before it was ready, with status %d: %s", *why)
            raise _unavailable()
        return child

    def _ask(self, child: ChildProcess, message: bytes, seconds: float) -> bytes | Ended:
        """What the child answers, or how it ended: over the message, or because the time is up.

        Raises:
            EngineStopped: stopped meanwhile.
        """
        try:
            answer = child.ask(message, seconds)
        except TimeoutError:
            log.error("the process that checks grammars has not answered for %.0f s", seconds)
            child.kill()
            answer = None
        if answer is not None:
            return answer
        ended = self._end(child)
        if self._stopped:
            raise EngineStopped("the engine has stopped")
        return ended

    def _end(self, child: ChildProcess) -> Ended:
        ended = child.end()
        self._child = None
        return ended


def _unavailable() -> Overloaded:
    return Overloaded("this server cannot check grammars now", code="grammar_unavailable")
