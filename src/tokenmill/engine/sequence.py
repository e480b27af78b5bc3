"""One choice of a request on its way through the engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum, auto

from tokenmill.core.request import GenerateRequest


class Phase(Enum):
    """Where a sequence stands. `WAITING` covers new and preempted ones."""

    WAITING = auto()
    RUNNING = auto()
    FINISHED = auto()


@dataclass(eq=False)
class Sequence:
    """Tokens, how far their KV is computed, and the blocks that hold it.

    Invariants: `blocks` covers at least `computed` tokens; all blocks but the last are full;
    `block_keys` has one entry for each leading full block whose KV is computed and registered.

    Attributes:
        arrival: number in order of acceptance; older sequences are never preempted for younger ones.
        max_total: prompt plus output tokens it may reach.
        leader: an earlier choice of the same prompt whose KV this one waits for to share.
        unread: prompt positions whose logits (or states, for an embedding) the request still has to read. It
            only ever loses its beginning, so a position is read once, however often it is computed.
    """

    request: GenerateRequest
    index: int
    arrival: int
    prompt_len: int
    tokens: list[int]
    max_total: int
    leader: Sequence | None = None
    unread: range = range(0)
    computed: int = 0
    blocks: list[int] = field(default_factory=list)
    block_keys: list[bytes] = field(default_factory=list)
    phase: Phase = Phase.WAITING
    preempted: bool = False
    cached_tokens: int = 0
    high_water: int = 0

    @property
    def total(self) -> int:
        return len(self.tokens)

    @property
    def pending(self) -> int:
        """Tokens whose KV is still to be computed."""
        return len(self.tokens) - self.computed

    @property
    def output_len(self) -> int:
        return len(self.tokens) - self.prompt_len

    @property
    def prompt_only(self) -> bool:
        """Ends when its prompt is computed, without sampling."""
        return self.max_total == self.prompt_len

    @property
    def scores_prompt(self) -> bool:
        """Logits of prompt positions are still to be read."""
        return bool(self.unread) and self.request.pooling is None

    @property
    def decoding(self) -> bool:
        """Exactly its newest token is left to compute, and it has sampled before."""
        return self.pending == 1 and self.output_len > 0
