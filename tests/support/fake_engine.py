"""An engine core over a model that is a hash: its answers depend on every token of the context as stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
import torch

from tokenmill.core.bus import Bus
from tokenmill.core.clock import ManualClock
from tokenmill.core.delta import Delta
from tokenmill.core.events import Event
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import GenerateRequest, Pooling, SamplingParams
from tokenmill.engine.core import EngineCore, Output
from tokenmill.engine.limits import Limits
from tokenmill.kernels.program import StepOutput
from tokenmill.kernels.step import Step

E = TypeVar("E", bound=Event)

VOCAB = 32
HIDDEN = 4
EOS = 0
# What it says a step moves, and each of its tokens multiplies.
MOVED_BYTES, MULTIPLY_ADDS = 1000, 7


class HashProgram:
    """Stores token and position at each slot, and reads contexts back through the block tables.

    The next token is a hash of the context as read, so a wrong block, slot or order changes the answer.
    Prompts that begin with a token in `broken` raise; those in `corrupt` give logits that are no numbers.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._stored = np.full((num_blocks * block_size, 2), -1, dtype=np.int64)
        self.largest_step = 0
        self.most_logits = 0
        self.logits_read = 0
        self.broken: set[int] = set()
        self.corrupt: set[int] = set()

    def run(self, step: Step) -> StepOutput:
        if len(set(step.slots.tolist())) != len(step.slots):
            raise RuntimeError("two tokens of one step share a slot")
        self.largest_step = max(self.largest_step, len(step.token_ids))
        if self.broken & set(step.token_ids[step.positions == 0].tolist()):
            raise RuntimeError("this token breaks the model")
        self.most_logits = max(self.most_logits, len(step.logit_rows))
        self.logits_read += len(step.logit_rows)
        self._stored[step.slots] = np.stack([step.token_ids, step.positions], axis=1)
        logits = [self._logits(context) for context in self._contexts(step, step.logit_rows)]
        states = [self._state(context) for context in self._contexts(step, step.hidden_rows)]
        return StepOutput(
            torch.stack(logits) if logits else torch.empty(0, VOCAB),
            torch.stack(states) if states else torch.empty(0, HIDDEN),
            moved_bytes=MOVED_BYTES,
            multiply_adds=MULTIPLY_ADDS * len(step.token_ids),
        )

    def clear(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._stored[block * self._block_size : (block + 1) * self._block_size] = -1

    def _contexts(self, step: Step, rows: Iterable[int]) -> Iterator[list[int]]:
        for row in rows:
            sequence = int(np.searchsorted(step.query_starts, row, side="right")) - 1
            yield self._context(step, sequence, int(step.positions[row]) + 1)

    def _context(self, step: Step, sequence: int, length: int) -> list[int]:
        position = np.arange(length)
        blocks = step.block_tables[sequence, position // self._block_size]
        stored = self._stored[blocks * self._block_size + position % self._block_size]
        if stored[:, 1].tolist() != position.tolist():
            raise RuntimeError("a context is not stored in its order")
        return [int(token) for token in stored[:, 0]]

    def _logits(self, context: list[int]) -> torch.Tensor:
        logits = torch.full((VOCAB,), -10.0)
        logits[next_token(context)] = 10.0
        if context[0] in self.corrupt:
            logits[3] = float("nan")
        return logits

    def _state(self, context: list[int]) -> torch.Tensor:
        return state_of(context) * (float("nan") if context[0] in self.corrupt else 1)


def next_token(context: Iterable[int]) -> int:
    """What the model says after a context; never EOS."""
    digest = hashlib.blake2b(bytes(context), digest_size=4).digest()
    return 1 + int.from_bytes(digest, "little") % (VOCAB - 1)


def state_of(context: Iterable[int]) -> torch.Tensor:
    """The model's hidden state after a context, [HIDDEN]: digits of its hash, none of them alike."""
    digest = hashlib.blake2b(bytes(context), digest_size=4 * HIDDEN, person=b"state").digest()
    return torch.from_numpy(np.frombuffer(digest, "<u4").astype("<f4") / 2**32)


def expected_output(prompt: Iterable[int], count: int) -> list[int]:
    """The model's greedy answer, computed without an engine."""
    context = list(prompt)
    start = len(context)
    for _ in range(count):
        context.append(next_token(context))
    return context[start:]


def expected_embedding(prompt: Sequence[int], pooling: Pooling) -> list[float]:
    """Its embedding of a prompt, computed without an engine."""
    states = torch.stack([state_of(prompt[: at + 1]) for at in range(len(prompt))]).double()
    found = states.mean(dim=0) if pooling == "mean" else states[-1]
    normed: list[float] = (found / found.norm()).tolist()
    return normed


class Letters:
    """A vocabulary of single letters; EOS has no text."""

    first_token_strips_space = False

    def token_bytes(self, token_id: int) -> bytes:
        return b"" if token_id == EOS else bytes([64 + token_id])

    def token_text(self, token_id: int) -> str:
        return self.token_bytes(token_id).decode()


class Harness:
    """An `EngineCore` over `HashProgram`, its events, and what each request got."""

    def __init__(
        self, num_blocks: int = 64, block_size: int = 16, max_model_len: int = 1024, **flags: object
    ) -> None:
        self.flags = ModelFlags.model_validate({"block_size": block_size, **flags})
        self.program = HashProgram(num_blocks, block_size)
        self.clock = ManualClock()
        self.events: list[Event] = []
        bus = Bus()
        bus.subscribe(self.events.append)
        self.core = EngineCore(
            self.program,
            Limits(VOCAB, max_model_len, num_blocks * block_size),
            self.flags,
            vocabulary=Letters(),
            eos_ids=(EOS,),
            bus=bus,
            clock=self.clock,
        )
        self.outputs: dict[str, list[Output]] = {}

    def add(
        self,
        name: str,
        prompt: Iterable[int],
        salt: bytes = b"",
        pooling: Pooling | None = None,
        **sampling: object,
    ) -> None:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})  # type: ignore[arg-type]  # by name
        request = GenerateRequest(
            request_id=name, prompt_ids=tuple(prompt), sampling=params, cache_salt=salt, pooling=pooling
        )
        self.core.add(request)
        self.outputs[name] = []

    def step(self) -> list[Output]:
        self.clock.advance(0.01)
        outputs = self.core.step()
        for output in outputs:
            self.outputs[output.request_id].append(output)
        self.core.scheduler.check()
        return outputs

    def run(self, limit: int = 10_000) -> None:
        """Steps until idle; an engine that never gets there is an error."""
        for _ in range(limit):
            if not self.core.has_work:
                return
            self.step()
        raise RuntimeError("the engine does not finish")

    def tokens(self, name: str, index: int = 0) -> list[int]:
        return [token for delta in self.deltas(name, index) for token in delta.token_ids]

    def text(self, name: str, index: int = 0) -> str:
        return "".join(delta.text for delta in self.deltas(name, index))

    def deltas(self, name: str, index: int = 0) -> list[Delta]:
        return [o.delta for o in self.outputs[name] if o.delta is not None and o.delta.index == index]

    def of(self, kind: type[E]) -> list[E]:
        return [event for event in self.events if isinstance(event, kind)]
