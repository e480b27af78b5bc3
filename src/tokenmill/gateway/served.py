"""What the routes serve: one model, and what they need to answer for it."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import ParamSpec, Protocol, TypeVar

from tokenmill.core.bus import Bus
from tokenmill.core.clock import Clock
from tokenmill.core.errors import Overloaded
from tokenmill.core.request import Pooling
from tokenmill.fleet.replica import Replica
from tokenmill.observe.metrics import Metrics

P = ParamSpec("P")
R = TypeVar("R")


class TextCodec(Protocol):
    """The part of a tokenizer the routes use."""

    @property
    def longest_token_bytes(self) -> int: ...

    @property
    def special_tokens(self) -> Mapping[str, int]: ...

    @property
    def first_token_strips_space(self) -> bool: ...

    def encode(self, text: str, *, add_special: bool) -> list[int]: ...

    def decode(self, ids: Sequence[int], *, skip_special: bool = True) -> str: ...

    def token_text(self, token_id: int) -> str: ...

    def token_bytes(self, token_id: int) -> bytes: ...


class MessageTemplate(Protocol):
    """The part of a chat template the routes use."""

    def __hash__(self) -> int: ...

    @property
    def source(self) -> str: ...

    @property
    def reads_tools(self) -> bool: ...

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The text of a conversation, whose messages have a string or a list of parts as content."""
        ...


@dataclass(frozen=True)
class ServedModel:
    """A model under the name clients use.

    Attributes:
        aliases: further names clients may use; answers carry `name`.
        created: seconds since the Unix epoch.
        chat_template: None when the model has none; then chat is refused.
        max_model_len: longest prompt plus output, in tokens.
        pooling: how token states become an embedding; None when nobody says, and embeddings are refused.
        hidden: numbers of an embedding.
    """

    name: str
    created: int
    tokenizer: TextCodec
    chat_template: MessageTemplate | None
    replica: Replica
    max_model_len: int
    vocab_size: int
    aliases: tuple[str, ...] = ()
    pooling: Pooling | None = None
    hidden: int = 0

    @property
    def names(self) -> tuple[str, ...]:
        return (self.name, *self.aliases)


@dataclass(frozen=True)
class Limits:
    """How long the gateway waits, in seconds.

    Attributes:
        body_s: for a whole request body.
        keepalive_s: silence on a stream after which a comment is sent.
    """

    body_s: float = 60.0
    keepalive_s: float = 15.0


class TokenizerThread:
    """The one thread that renders templates and tokenizes, so that the event loop never does."""

    def __init__(self) -> None:
        self._executor = ThreadPoolExecutor(max_workers=1, thread_name_prefix="tokenizer")

    async def run(self, job: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._executor, lambda: job(*args, **kwargs))

    def close(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


@dataclass
class Serving:
    """Everything a route may touch.

    Attributes:
        max_waiting: requests that wait, here or in the replica, from which on new ones are refused.
        entering: requests whose body is read or whose text is tokenized now.
        serial: makes request ids unique.
        draining: set once, when the server is told to stop.
    """

    model: ServedModel
    bus: Bus
    metrics: Metrics
    clock: Clock
    limits: Limits
    max_waiting: int
    tokenizer_thread: TokenizerThread = field(default_factory=TokenizerThread)
    serial: Iterator[int] = field(default_factory=lambda: itertools.count(1))
    entering: int = 0
    draining: bool = False

    @contextmanager
    def entry(self) -> Iterator[None]:
        """Inside, a request counts as waiting. Raises Overloaded when too many wait already."""
        waiting = self.entering + self.model.replica.stats().waiting
        if waiting >= self.max_waiting:
            raise Overloaded(f"{waiting} requests are waiting already; try again in a moment")
        self.entering += 1
        try:
            yield
        finally:
            self.entering -= 1
