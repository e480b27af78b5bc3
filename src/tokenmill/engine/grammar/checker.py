"""The server's side of the process that compiles a grammar first."""

from __future__ import annotations

import contextlib
import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import msgspec

import tokenmill
from tokenmill.core.bounds import GRAMMAR_KINDS
from tokenmill.core.errors import EngineStopped, GenerationFailed, InvalidRequest
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.frames import read_frame, write_frame
from tokenmill.engine.grammar.vocabulary import GrammarVocabulary

log = logging.getLogger(__name__)

START_S = 30.0
CHECK_S = 2.0
MODULE = "tokenmill.engine.grammar.child"


class Checker:
    """One child process, started when a grammar comes and none runs. Not thread safe, `close` excepted."""

    def __init__(self, vocabulary: GrammarVocabulary) -> None:
        self._vocabulary = msgspec.msgpack.encode(vocabulary)
        self._child: subprocess.Popen[bytes] | None = None
        self._lock = threading.Lock()
        self._closed = False

    @property
    def pid(self) -> int | None:
        """The child's process id while there is one."""
        return None if self._child is None else self._child.pid

    def check(self, grammar: Grammar) -> None:
        """Compiles a grammar in the child.

        Raises:
            InvalidRequest: it cannot be used, or is too complex: the child did not survive it.
            GenerationFailed: there is no child to check it.
            EngineStopped: closed.
        """
        request = msgspec.msgpack.encode(grammar)
        answer = self._ask(self._running(), request, CHECK_S)
        if answer is None and self._end() == 0:  # it had been idle for so long that it was just leaving
            answer = self._ask(self._running(), request, CHECK_S)
        what = GRAMMAR_KINDS[grammar.kind]
        if answer is None:
            self._end()
            raise InvalidRequest(f"the {what} is too complex to compile", code="grammar_too_complex")
        error = msgspec.msgpack.decode(answer)["error"]
        if error is not None:
            raise InvalidRequest(f"the {what} cannot be used: {error}", code="invalid_grammar")

    def close(self) -> None:
        """Ends the child, in whatever it is doing."""
        with self._lock:
            self._closed = True
            if self._child is not None:
                self._child.kill()

    def _running(self) -> subprocess.Popen[bytes]:
        if self._child is not None and self._child.poll() is None:
            return self._child
        self._end()
        try:
            child = self._start()
        except OSError as error:
            log.error("the process that checks grammars cannot be started: %s", error)
        else:
            if self._ask(child, self._vocabulary, START_S) is not None:
                return child
            code = self._end()
            log.error("the process that checks grammars ended before it was ready, with status %s", code)
        raise GenerationFailed("this server cannot check grammars now", code="grammar_unavailable")

    def _start(self) -> subprocess.Popen[bytes]:
        # Nothing of the server's own environment: it may hold keys.
        environment = {"PYTHONPATH": str(Path(tokenmill.__file__).parents[1])}
        if "LD_LIBRARY_PATH" in os.environ:
            environment["LD_LIBRARY_PATH"] = os.environ["LD_LIBRARY_PATH"]
        with self._lock:
            if self._closed:
                raise EngineStopped("the engine has stopped")
            self._child = subprocess.Popen(
                [sys.executable, "-P", "-s", "-m", MODULE],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                env=environment,
                start_new_session=True,  # an interrupt at the terminal is for the server
                bufsize=0,
            )
        return self._child

    def _ask(self, child: subprocess.Popen[bytes], message: bytes, seconds: float) -> bytes | None:
        """What the child answers; None when it died over the message, as it does when the time is up."""
        if child.stdin is None or child.stdout is None:
            raise ValueError("the child has no pipes")
        guard = threading.Timer(seconds, child.kill)
        guard.daemon = True
        guard.start()
        answer = None
        with contextlib.suppress(OSError):
            write_frame(child.stdin.fileno(), message)
            answer = read_frame(child.stdout.fileno())
        guard.cancel()
        if answer is None and self._closed:
            raise EngineStopped("the engine has stopped")
        return answer

    def _end(self) -> int | None:
        """Waits for a child that is dead, or as good as; returns its exit status."""
        with self._lock:
            child, self._child = self._child, None
        if child is None:
            return None
        for pipe in (child.stdin, child.stdout):
            if pipe is not None:
                pipe.close()
        try:
            return child.wait(1)
        except subprocess.TimeoutExpired:
            child.kill()
            return child.wait()
