"""The scheduler's decisions as plain functions: order, admission, growth, victim."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items

from tokenmill.engine.sequence import Sequence

# Part of its expected growth that is left free for a sequence. Sequences end at different times, and taking a
# tail back costs a block or two of recompute: benchmarks/admission.py, docs/decisions/scheduling.md.
GROWTH_SHARE = 0.25
# Before any request has finished, outputs are expected to be this long, in tokens.
UNKNOWN_OUTPUT = 64


def queue_order(seq: Sequence) -> tuple[int, int]:
    """Strict tiers, then arrival. Preempted sequences keep their arrival, so they come back first."""
    return (seq.request.tier, seq.arrival)


def step_order(seq: Sequence) -> tuple[bool, int, int]:
    """Decodes first: a long prompt must not hold up streams that already flow."""
    return (not seq.decoding, *queue_order(seq))


def blocks_for(tokens: int, block_size: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return -(-tokens // block_size)


def expected_output(recent: Items[int]) -> int:
    """Output length to plan with: the median of recent outputs.

    Over several sequences what some take beyond it others leave; what is still missing is preempted, which
    costs a tail. A higher quantile would leave the pool unused for the sake of those few.
    """
    return sorted(recent)[len(recent) // 2] if recent else UNKNOWN_OUTPUT


def growth_blocks(seq: Sequence, expected: int, block_size: int) -> int:
    """Blocks to leave free for a sequence beyond those it holds: its tokens, and part of its growth."""
    goal = min(seq.max_total, max(seq.total, seq.prompt_len + expected))
    reserved = seq.total + int(GROWTH_SHARE * (goal - seq.total))
    return max(0, blocks_for(reserved, block_size) - len(seq.blocks))


def fits_now(need: int, available: int, expected_growth: int) -> bool:
    """Admits when the whole sequence fits beside what the running ones are expected to grow by."""
    return need + expected_growth <= available


def choose_victim(
    candidates: Iterable[tuple[Sequence, int]], wanted: int, block_size: int
) -> Sequence | None:
    """Whom to take `wanted` blocks from, of (sequence, blocks at its end that it does not share).

    First those preempted already, then the least recompute a freed block: only a sequence's tail is taken, so
    the price is the tokens in it. Who shares all its blocks frees none and comes last, youngest first.
    """

    def price(candidate: tuple[Sequence, int]) -> tuple[bool, bool, float, int]:
        seq, own = candidate
        freed = min(wanted, own)
        kept = (len(seq.blocks) - freed) * block_size
        lost = max(0, seq.computed - kept) / freed if freed else 0.0
        return (own == 0, not seq.preempted, lost, -seq.arrival)

    return min((c for c in candidates if c[0].blocks), key=price, default=(None, 0))[0]
