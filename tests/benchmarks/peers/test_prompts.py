from __future__ import annotations

from benchmarks.peers.prompts import batches
from benchmarks.peers.rows import ROWS


def test_prompts_have_the_length_and_number_of_their_row() -> None:
    for row in ROWS:
        found = batches(row, 1)
        assert len(found) == row.repeats
        assert all(len(batch) == row.streams for batch in found)
        assert {len(prompt) for batch in found for prompt in batch} == {row.prompt_tokens}


def test_no_two_prompts_of_any_row_or_round_begin_alike() -> None:
    prompts = [
        prompt for row in ROWS for seed in (1, 2, 3) for batch in batches(row, seed) for prompt in batch
    ]
    assert len({tuple(prompt[:4]) for prompt in prompts}) == len(prompts)


def test_a_seed_gives_the_same_prompts_again() -> None:
    assert batches(ROWS[0], 7) == batches(ROWS[0], 7)
