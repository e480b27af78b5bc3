"""Which tokens the next step computes. One rule for prefill, chunks, decode and resuming: a sequence is
given tokens until what is computed has caught up with what is known."""

from __future__ import annotations

import bisect
from collections import deque
from dataclasses import dataclass, field

import msgspec

from tokenmill.core.flags import ModelFlags
from tokenmill.engine import policy
from tokenmill.engine.blocks import BlockPool, pack_tokens, root_key
from tokenmill.engine.sequence import Phase, Sequence
from tokenmill.planner.activations import PROMPT_LOGIT_ROWS

RECENT_OUTPUTS = 256


class Chunk(msgspec.Struct, frozen=True, eq=False):
    """`count` further tokens of a sequence, from `start`.

    Attributes:
        samples: it reaches the sequence's last known token, so that its logits are wanted.
        completes: it is the last of a sequence that ends with its prompt.
        reads: prompt positions of it whose logits or states are wanted.
        recomputed: tokens of it that had been computed before a preemption.
        prefilled: prompt tokens of it that are computed for the first time.
    """

    seq: Sequence
    start: int
    count: int
    samples: bool
    completes: bool
    reads: range
    recomputed: int
    prefilled: int

    @classmethod
    def of(cls, seq: Sequence, count: int) -> Chunk:
        """The sequence's next `count` tokens."""
        start, unread = seq.computed, seq.unread
        end = start + count
        reaches_end = end == seq.total
        recomputed = max(0, min(seq.high_water, end) - start)
        return cls(
            seq,
            start,
            count,
            reaches_end and not seq.prompt_only,
            reaches_end and seq.prompt_only,
            range(max(start, unread.start), min(end, unread.stop)) if unread else unread,
            recomputed,
            max(0, min(seq.prompt_len, end) - start - recomputed),
        )


@dataclass
class Preemption:
    """What a sequence gave back in one step. `stopped` when it was running."""

    seq: Sequence
    freed_blocks: int = 0
    lost_tokens: int = 0
    stopped: bool = False


@dataclass
class Plan:
    """One step.

    Attributes:
        admitted: sequences that joined.
        preempted: those that gave something back.
        prompt_rows: logits it reads for log-probabilities of prompts, at most `PROMPT_LOGIT_ROWS`.
    """

    chunks: list[Chunk] = field(default_factory=list)
    admitted: list[Sequence] = field(default_factory=list)
    preempted: dict[Sequence, Preemption] = field(default_factory=dict)
    tokens: int = 0
    prompt_rows: int = 0


class Scheduler:
    """Owns the queue, the running set and the block pool; decisions are those of `engine.policy`."""

    def __init__(self, flags: ModelFlags, num_blocks: int) -> None:
        self.block_size = flags.block_size
        self.pool = BlockPool(num_blocks, caching=flags.enable_prefix_caching)
        self.waiting: list[Sequence] = []
        self.running: list[Sequence] = []
        # Waiting sequences that keep blocks.
        self._preempted: set[Sequence] = set()
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
        live = (*self.running, *self._preempted)
        unused = sum(len(seq.blocks) * self.block_size - seq.computed for seq in live)
        return self.pool.active * self.block_size - unused

    def add(self, seq: Sequence) -> None:
        """Queues a sequence that can ever fit."""
        bisect.insort(self.waiting, seq, key=policy.queue_order)

    def plan(self) -> Plan:
        """Hands out at most the step's token budget: decodes, then running prefills, then admissions."""
        plan = Plan()
        for seq in sorted(self.running, key=policy.step_order):
            if seq.phase is Phase.RUNNING:  # else a sequence before it has taken its blocks
                self._schedule(seq, plan)
        if not self._static or not self.running:
            self._admit(plan)
        if self.running and not plan.chunks:
            # Whoever runs lacks blocks that older, preempted sequences keep. With all of them in the queue
            # the oldest is alone, and takes what it needs.
            for seq in list(self.running):
                self._preempt(seq, 0, plan)
            plan.preempted.clear()
            self._admit(plan)
        return plan

    def finish(self, seq: Sequence) -> None:
        """Takes a sequence out, for whatever reason, and gives its blocks back."""
        if seq.phase is Phase.FINISHED:
            return
        (self.running if seq.phase is Phase.RUNNING else self.waiting).remove(seq)
        seq.phase = Phase.FINISHED
        self._preempted.discard(seq)
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
            if chunk.reads:
                seq.unread = range(chunk.reads.stop, seq.unread.stop)
            self._register(seq)

    def check(self) -> None:
        """Raises RuntimeError if a block is lost, held twice or not covered."""
        live = [*self.running, *self.waiting]
        self.pool.check([seq.blocks for seq in live])
        for seq in live:
            if len(seq.blocks) < policy.blocks_for(seq.computed, self.block_size):
                raise RuntimeError("a sequence has computed tokens without blocks")

    def _register(self, seq: Sequence) -> None:
        if not self._caching:
            return
        for number in range(len(seq.block_keys), seq.computed // self.block_size):
            start = number * self.block_size
            parent = seq.block_keys[-1] if seq.block_keys else root_key(seq.request.cache_salt)
            packed = pack_tokens(seq.tokens[start : start + self.block_size])
            seq.block_keys.append(self.pool.register(seq.blocks[number], parent, packed))

    def _schedule(self, seq: Sequence, plan: Plan) -> None:
        wanted = min(seq.pending, self._max_tokens - plan.tokens)
        scores = seq.scores_prompt
        if scores:
            rows = PROMPT_LOGIT_ROWS - plan.prompt_rows
            wanted = min(wanted, max(0, seq.unread.start - seq.computed) + rows)
        if wanted > 0:
            self._make_room(seq, wanted, plan)
            fits = len(seq.blocks) * self.block_size - seq.computed
            count = min(wanted, fits)
            if count > 0:
                chunk = Chunk.of(seq, count)
                plan.chunks.append(chunk)
                plan.tokens += count
                if scores:
                    plan.prompt_rows += len(chunk.reads)

    def _make_room(self, seq: Sequence, tokens: int, plan: Plan) -> None:
        """Gives `seq` blocks for `tokens` more tokens, or as many as there are.

        Blocks are taken only from younger sequences that are not in this step yet.
        """
        missing = policy.blocks_for(seq.computed + tokens, self.block_size) - len(seq.blocks)
        if missing <= 0:
            return
        if missing > self.pool.available:
            scheduled = {chunk.seq for chunk in plan.chunks}
            mine = policy.queue_order(seq)
            self._take_back(
                missing,
                [
                    other
                    for other in (*self.running, *self._preempted)
                    if policy.queue_order(other) > mine and other not in scheduled
                ],
                plan,
            )
        seq.blocks += self.pool.take(min(missing, self.pool.available)) or []

    def _take_back(self, wanted: int, holders: list[Sequence], plan: Plan) -> None:
        """Makes `wanted` blocks available out of the tails of `holders`, as far as those go."""
        while wanted > self.pool.available:
            missing = wanted - self.pool.available
            candidates = ((seq, self.pool.private(seq.blocks)) for seq in holders)
            victim = policy.choose_victim(candidates, missing, self.block_size)
            if victim is None:
                return
            own = self.pool.private(victim.blocks)
            self._preempt(victim, min(missing, own) if own else len(victim.blocks), plan)

    def _preempt(self, seq: Sequence, count: int, plan: Plan) -> None:
        """Takes `count` blocks from the tail; the head stays, and waits for its turn."""
        kept = len(seq.blocks) - count
        lost = max(0, seq.computed - kept * self.block_size)
        before = self.pool.available
        self.pool.release(seq.blocks[kept:])
        del seq.blocks[kept:]
        del seq.block_keys[kept:]
        seq.computed -= lost
        loss = plan.preempted.setdefault(seq, Preemption(seq))
        loss.freed_blocks += self.pool.available - before
        loss.lost_tokens += lost
        if seq.phase is Phase.RUNNING:
            self.running.remove(seq)
            seq.phase = Phase.WAITING
            seq.preempted = loss.stopped = True
            self._preempted.add(seq)
            self.add(seq)

    def _admit(self, plan: Plan) -> None:
        at = 0
        while at < len(self.waiting) and len(self.running) < self._max_seqs:
            seq = self.waiting[at]
            # A static batch is formed as a whole; its prompts are computed in the steps that follow.
            if plan.tokens >= self._max_tokens and not self._static:
                return
            if self._waits_for_leader(seq):
                at += 1
                continue
            if seq in plan.preempted:
                return
            found = self._find(seq)
            if not self._fits(seq, found, plan):
                return
            self._start(seq, found, plan)
            self._schedule(seq, plan)

    def _waits_for_leader(self, seq: Sequence) -> bool:
        leader = seq.leader
        if leader is None or leader.phase is Phase.FINISHED:
            return False
        shares = self._caching and not self._static and leader.high_water < leader.prompt_len
        # What the leader reads of the prompt is handed out with every choice's first output.
        return shares or bool(leader.unread)

    def _find(self, seq: Sequence) -> list[tuple[int, bytes]]:
        """Cached blocks a sequence can go on with behind those it has.

        They hold KV and no logits, so what is still to be read is computed.
        """
        if seq.computed != len(seq.blocks) * self.block_size or len(seq.block_keys) != len(seq.blocks):
            return []
        tokens = seq.tokens[: seq.unread.start + 1] if seq.unread else seq.tokens
        return self.pool.match(tokens, self.block_size, seq.request.cache_salt, seq.block_keys)

    def _fits(self, seq: Sequence, found: list[tuple[int, bytes]], plan: Plan) -> bool:
        shared = sum(not self.pool.idle(block) for block, _ in found)
        need = policy.blocks_for(seq.total, self.block_size) - len(seq.blocks) - shared
        if not self.running:
            # Nothing runs, so what other waiting sequences kept is all that can be in the way.
            self._take_back(need, [other for other in self._preempted if other is not seq], plan)
            return True
        expected = policy.expected_output(self._recent_outputs)
        growth = sum(policy.growth_blocks(other, expected, self.block_size) for other in self.running)
        own = policy.growth_blocks(seq, expected, self.block_size)
        own -= policy.blocks_for(seq.total, self.block_size) - len(seq.blocks)
        return policy.fits_now(need, self.pool.available, growth + max(0, own))

    def _start(self, seq: Sequence, found: list[tuple[int, bytes]], plan: Plan) -> None:
        self.waiting.remove(seq)
        self._preempted.discard(seq)
        self.running.append(seq)
        seq.phase = Phase.RUNNING
        seq.preempted = False
        self.pool.hold([block for block, _ in found])
        seq.blocks += [block for block, _ in found]
        seq.block_keys += [key for _, key in found]
        seq.computed += len(found) * self.block_size
        if seq.high_water == 0:
            seq.cached_tokens = seq.computed
        plan.admitted.append(seq)
