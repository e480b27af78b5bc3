"""Which tokens the next step computes. One rule for prefill, chunks, decode and resuming: a sequence is
given tokens until what is computed has caught up with what is known."""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

from tokenmill.core.flags import ModelFlags
from tokenmill.engine import policy
from tokenmill.engine.blocks import BlockPool, pack_tokens, root_key
from tokenmill.engine.sequence import Phase, Sequence

RECENT_OUTPUTS = 256


@dataclass(frozen=True)
class Chunk:
    """`count` further tokens of a sequence, from `start`."""

    seq: Sequence
    start: int
    count: int

    @property
    def samples(self) -> bool:
        """Whether this chunk reaches the sequence's last known token, so that its logits are wanted."""
        return self.start + self.count == self.seq.total

    @property
    def recomputed(self) -> int:
        """Tokens of it that had been computed before a preemption."""
        return max(0, min(self.seq.high_water, self.start + self.count) - self.start)


@dataclass(frozen=True)
class Preemption:
    seq: Sequence
    freed_blocks: int
    lost_tokens: int


@dataclass
class Plan:
    """One step. `admitted` are the sequences that joined, `preempted` those that gave blocks back."""

    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: list[Preemption] = field(default_factory=list)

    @property
    def tokens(self) -> int:
        return sum(chunk.count for chunk in self.chunks)


class Scheduler:
    """Owns the queue, the running set and the block pool; decisions are those of `engine.policy`."""

    def __init__(self, flags: ModelFlags, num_blocks: int) -> None:
        self.block_size = flags.block_size
        self.pool = BlockPool(num_blocks, caching=flags.enable_prefix_caching)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        self._caching = flags.enable_prefix_caching
        self._static = flags.batching == "static"
        self._max_seqs = flags.max_num_seqs
        self._max_tokens = flags.max_num_batched_tokens
        self._recent_outputs: deque[int] = deque(maxlen=RECENT_OUTPUTS)

    @property
    def has_work(self) -> bool:
        return bool(self.waiting or self.running)

    @property
    def kv_tokens(self) -> int:
        """Tokens whose KV is held; a token in a shared block counts once.

        Shared blocks are full, so what is unused lies in the blocks a sequence has to itself.
        """
        live = (*self.running, *self.waiting)
        unused = sum(len(seq.blocks) * self.block_size - seq.computed for seq in live)
        return self.pool.active * self.block_size - unused

    def add(self, seq: Sequence) -> None:
        """Queues a sequence that can ever fit."""
        bisect.insort(self.waiting, seq, key=policy.queue_order)

    def plan(self) -> Plan:
        """Hands out at most the step's token budget: decodes, then running prefills, then admissions."""
        plan = Plan()
        scheduled: set[Sequence] = set()
        for seq in sorted(self.running, key=policy.step_order):
            if seq.phase is Phase.RUNNING:  # else a sequence before it has taken its blocks
                self._schedule(seq, plan, scheduled)
        if not self._static or not self.running:
            self._admit(plan, scheduled)
        return plan

    def finish(self, seq: Sequence) -> None:
        """Takes a sequence out, for whatever reason, and gives its blocks back."""
        if seq.phase is Phase.FINISHED:
            return
        (self.running if seq.phase is Phase.RUNNING else self.waiting).remove(seq)
        seq.phase = Phase.FINISHED
        self.pool.release(seq.blocks)
        seq.blocks = []

    def learn(self, output_len: int) -> None:
        """Notes how long a finished output was; admission plans growth with it."""
        self._recent_outputs.append(output_len)

    def commit(self, plan: Plan) -> None:
        """Books the step's KV as computed, and makes blocks it filled findable."""
        for chunk in plan.chunks:
            seq = chunk.seq
            if seq.phase is not Phase.RUNNING:
                continue
            seq.computed = chunk.start + chunk.count
            seq.high_water = max(seq.high_water, seq.computed)
            self._register(seq)

    def check(self) -> None:
        """Raises RuntimeError if a block is lost, held twice or not covered."""
        live = [*self.running, *self.waiting]
        self.pool.check([seq.blocks for seq in live])
        for seq in live:
            if len(seq.blocks) < policy.blocks_for(seq.computed, self.block_size):
                raise RuntimeError("a sequence has computed tokens without blocks")

    def _register(self, seq: Sequence) -> None:
        for number in range(len(seq.block_keys), seq.computed // self.block_size):
            start = number * self.block_size
            parent = seq.block_keys[-1] if seq.block_keys else root_key(seq.request.cache_salt)
            packed = pack_tokens(seq.tokens[start : start + self.block_size])
            seq.block_keys.append(self.pool.register(seq.blocks[number], parent, packed))

    def _schedule(self, seq: Sequence, plan: Plan, scheduled: set[Sequence]) -> None:
        wanted = min(seq.pending, self._max_tokens - plan.tokens)
        if wanted > 0:
            self._make_room(seq, wanted, plan, scheduled)
            fits = len(seq.blocks) * self.block_size - seq.computed
            count = min(wanted, fits)
            if count > 0:
                plan.chunks.append(Chunk(seq, seq.computed, count))
                scheduled.add(seq)

    def _make_room(self, seq: Sequence, tokens: int, plan: Plan, scheduled: set[Sequence]) -> None:
        """Gives `seq` blocks for `tokens` more tokens, or as many as there are.

        Blocks are taken only from younger sequences, so the oldest one always goes on.
        """
        missing = policy.blocks_for(seq.computed + tokens, self.block_size) - len(seq.blocks)
        while missing > self.pool.available:
            younger = (
                other
                for other in (*self.running, *self.waiting)
                if policy.queue_order(other) > policy.queue_order(seq) and other not in scheduled
            )
            victim = policy.choose_victim(younger, missing - self.pool.available, self.block_size)
            if victim is None:
                break
            plan.preempted.append(self._preempt(victim, missing - self.pool.available))
        seq.blocks += self.pool.take(max(0, min(missing, self.pool.available))) or []

    def _preempt(self, seq: Sequence, wanted: int) -> Preemption:
        """Takes up to `wanted` blocks from the tail; the head stays, and waits for its turn."""
        freed = min(wanted, len(seq.blocks))
        kept = len(seq.blocks) - freed
        lost = max(0, seq.computed - kept * self.block_size)
        self.pool.release(seq.blocks[kept:])
        del seq.blocks[kept:]
        del seq.block_keys[kept:]
        seq.computed -= lost
        if seq.phase is Phase.RUNNING:
            self.running.remove(seq)
            seq.phase = Phase.WAITING
            seq.preempted = True
            self.add(seq)
        return Preemption(seq, freed, lost)

    def _admit(self, plan: Plan, scheduled: set[Sequence]) -> None:
        for seq in list(self.waiting):
            if len(self.running) >= self._max_seqs or plan.tokens >= self._max_tokens:
                return
            if self._waits_for_leader(seq):
                continue
            if seq.preempted and any(p.seq is seq for p in plan.preempted):
                return
            if not self._fits(seq, plan):
                return
            self._start(seq, plan)
            self._schedule(seq, plan, scheduled)

    def _waits_for_leader(self, seq: Sequence) -> bool:
        leader = seq.leader
        return (
            self._caching
            and leader is not None
            and leader.phase is not Phase.FINISHED
            and leader.high_water < leader.prompt_len
        )

    def _fits(self, seq: Sequence, plan: Plan) -> bool:
        # The blocks a sequence kept through preemption are its own; others may be found in the cache.
        hits = [] if seq.blocks else self.pool.match(seq.tokens, self.block_size, seq.request.cache_salt)
        shared = sum(not self.pool.idle(block) for block, _ in hits)
        need = policy.blocks_for(seq.total, self.block_size) - len(seq.blocks) - shared
        expected = policy.expected_output(self._recent_outputs)
        growth = sum(policy.growth_blocks(other, expected, self.block_size) for other in self.running)
        own = policy.growth_blocks(seq, expected, self.block_size)
        own -= policy.blocks_for(seq.total, self.block_size) - len(seq.blocks)
        alone = not self.running
        while alone and need > self.pool.available:
            # Nothing runs, so what other waiting sequences kept is all that can be in the way.
            holders = (other for other in self.waiting if other is not seq)
            victim = policy.choose_victim(holders, need - self.pool.available, self.block_size)
            if victim is None:
                break
            plan.preempted.append(self._preempt(victim, need - self.pool.available))
        return policy.fits_now(need, self.pool.available, growth + max(0, own), alone=alone)

    def _start(self, seq: Sequence, plan: Plan) -> None:
        self.waiting.remove(seq)
        self.running.append(seq)
        seq.phase = Phase.RUNNING
        seq.preempted = False
        if not seq.blocks:
            found = self.pool.match(seq.tokens, self.block_size, seq.request.cache_salt)
            self.pool.hold([block for block, _ in found])
            seq.blocks = [block for block, _ in found]
            seq.block_keys = [key for _, key in found]
            seq.computed = len(found) * self.block_size
            if seq.high_water == 0:
                seq.cached_tokens = seq.computed
        plan.admitted.append(seq)
