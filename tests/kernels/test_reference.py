"""What the reference backend promises beyond right numbers: other sequences' memory is never felt."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from support.tiny_models import load_tiny, save_tiny, step_of
from tokenmill.kernels.memory import committed

TOKENS = [5, 9, 13, 40, 7]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", made)
    return made


def test_numbers_that_are_none_in_other_blocks_do_not_spread(folder: Path) -> None:
    program = load_tiny(folder)
    expected = program.run(step_of([(TOKENS, 0, [3])])).logits
    for cache in (*program._keys, *program._values):
        cache[:3] = torch.nan
        cache[4:-1] = torch.inf
    assert torch.equal(program.run(step_of([(TOKENS, 0, [3])])).logits, expected)


def test_cleared_blocks_hold_nothing(folder: Path) -> None:
    program = load_tiny(folder)
    program.run(step_of([(TOKENS, 0, [3])]))
    program.clear([3])
    assert all(not cache[3].any() for cache in (*program._keys, *program._values))


def test_a_step_without_wanted_logits_gives_none(folder: Path) -> None:
    step = step_of([(TOKENS, 0, [3])])
    quiet = replace(step, logit_rows=step.logit_rows[:0])
    assert load_tiny(folder).run(quiet).logits.shape == (0, 160)


def test_committed_memory_is_zero_and_of_any_shape() -> None:
    assert committed((3, 0), torch.float32).shape == (3, 0)
    made = committed((3, 5), torch.bfloat16)
    assert made.shape == (3, 5) and not made.any()
