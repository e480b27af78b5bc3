"""An engine core over a model that is a hash: its answers depend on every token of the context as stored."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence

import numpy as np
import torch

from tokenmill.core.bus import Bus
from tokenmill.core.clock import ManualClock
from tokenmill.core.events import Event
from tokenmill.core.flags import ModelFlags
from tokenmill.core.request import GenerateRequest, SamplingParams
from tokenmill.engine.core import EngineCore, Output
from tokenmill.engine.limits import Limits
from tokenmill.kernels.program import StepOutput
from tokenmill.kernels.step import Step

VOCAB = 32
EOS = 0


class HashProgram:
    """Stores token and position at each slot, and reads contexts back through the block tables.

    The next token is a hash of the context as read, so a wrong block, slot or order changes the answer.
    Prompts that begin with a token in `broken` raise; those in `corrupt` give logits that are no numbers.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        self._block_size = block_size
        self._stored = np.full((num_blocks * block_size, 2), -1, dtype=np.int64)
        self.largest_step = 0
        self.broken: set[int] = set()
        self.corrupt: set[int] = set()

    def run(self, step: Step) -> StepOutput:
        if len(set(step.slots.tolist())) != len(step.slots):
            raise RuntimeError("two tokens of one step share a slot")
        self.largest_step = max(self.largest_step, len(step.token_ids))
        if self.broken & set(step.token_ids[step.positions == 0].tolist()):
            raise RuntimeError("this token breaks the model")
        self._stored[step.slots] = np.stack([step.token_ids, step.positions], axis=1)
        rows = []
        for sequence, (start, end) in enumerate(zip(step.query_starts, step.query_starts[1:], strict=False)):
            for row in step.logit_rows[(step.logit_rows >= start) & (step.logit_rows < end)]:
                rows.append(self._logits(self._context(step, sequence, int(step.positions[row]) + 1)))
        return StepOutput(
            torch.stack(rows) if rows else torch.empty(0, VOCAB), torch.empty(len(step.hidden_rows), 0)
        )

    def clear(self, blocks: Sequence[int]) -> None:
        for block in blocks:
            self._stored[block * self._block_size : (block + 1) * self._block_size] = -1

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


def next_token(context: Iterable[int]) -> int:
    """What the model says after a context; never EOS."""
    digest = hashlib.blake2b(bytes(context), digest_size=4).digest()
    return 1 + int.from_bytes(digest, "little") % (VOCAB - 1)


def expected_output(prompt: Iterable[int], count: int) -> list[int]:
    """The model's greedy answer, computed without an engine."""
    context = list(prompt)
    start = len(context)
    for _ in range(count):
        context.append(next_token(context))
    return context[start:]


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

    def add(self, name: str, prompt: Iterable[int], salt: bytes = b"", **sampling: object) -> None:
        params = SamplingParams(**{"temperature": 0.0, "max_tokens": 8, **sampling})  # type: ignore[arg-type]  # by name
        self.core.add(
            GenerateRequest(request_id=name, prompt_ids=tuple(prompt), sampling=params, cache_salt=salt)
        )
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
        deltas = [o.delta for o in self.outputs[name] if o.delta is not None and o.delta.index == index]
        return [token for delta in deltas for token in delta.token_ids]

    def text(self, name: str, index: int = 0) -> str:
        deltas = [o.delta for o in self.outputs[name] if o.delta is not None and o.delta.index == index]
        return "".join(delta.text for delta in deltas)

    def of(self, kind: type[Event]) -> list[Event]:
        return [event for event in self.events if isinstance(event, kind)]
