"""The prompts: token ids, the same for every engine, no two alike."""

from __future__ import annotations

from benchmarks.peers.rows import NAMES, Row
from tokenmill.bench.distribution import parse
from tokenmill.bench.workload import Workload


def workload(row: Row, seed: int) -> Workload:
    """Prompts and answer lengths of a row; `seed` is the round, so that no cache of the last one answers."""
    return Workload(
        parse(row.prompt_tokens),
        parse(row.output_tokens),
        seed=1000 * seed + NAMES.index(row.name),
        token_ids=True,
    )


def batches(row: Row, seed: int) -> list[list[list[int]]]:
    """Token ids [repeats][streams][prompt_tokens]."""
    items = workload(row, seed)
    return [
        [ids(items, repeat * row.streams + stream) for stream in range(row.streams)]
        for repeat in range(row.repeats)
    ]


def ids(items: Workload, index: int) -> list[int]:
    """The token ids of one item."""
    return [token for token in items.item(index).prompt if isinstance(token, int)]
