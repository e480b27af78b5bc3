"""Logits of the Llama family against transformers, in prefill, in pieces, and in paged decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_models import VOCAB, load_tiny, save_tiny, step_of

TOLERANCE = 1e-4

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 6}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama3-rope": (
        "llama",
        {
            "rope_parameters": {
                "rope_type": "llama3",
                "rope_theta": 10000.0,
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 64,
            }
        },
    ),
    "llama-linear-rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 40}),
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    kind, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return save_tiny(kind, folder, **changes), folder


def oracle(model: Any, tokens: list[int]) -> torch.Tensor:
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def tokens_of(length: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return [int(t) for t in torch.randint(3, VOCAB, (length,), generator=generator)]


@pytest.mark.parametrize("length", [1, 2, 9, 130, 300])
def test_prefill(pair: tuple[Any, Path], length: int) -> None:
    model, folder = pair
    tokens = tokens_of(length)
    logits = load_tiny(folder).run(step_of([(tokens, 0, list(range(19)))])).logits
    torch.testing.assert_close(logits, oracle(model, tokens), atol=TOLERANCE, rtol=0)


def test_paged_decode_over_scattered_blocks(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    tokens = tokens_of(150)
    program = load_tiny(folder)
    blocks = [(7 * i) % 64 for i in range(10)]
    got = [program.run(step_of([(tokens[:100], 0, blocks)])).logits]
    got += [program.run(step_of([(tokens[at : at + 1], at, blocks)])).logits for at in range(100, 150)]
    torch.testing.assert_close(torch.cat(got), oracle(model, tokens), atol=TOLERANCE, rtol=0)


def test_mixed_steps_of_several_sequences(pair: tuple[Any, Path]) -> None:
    model, folder = pair
    sequences = [tokens_of(length, seed) for seed, length in enumerate((60, 33, 5, 140))]
    blocks = [list(range(16 * i, 16 * i + 16)) for i in range(4)]
    program = load_tiny(folder)
    done = [0] * 4
    got: list[list[torch.Tensor]] = [[] for _ in sequences]
    pieces = ((17, 1, 5, 129), (1, 31, 0, 1), (30, 1, 0, 9), (12, 0, 0, 1))
    for step in pieces:
        parts = [
            (tokens[done[i] : done[i] + count], done[i], blocks[i])
            for i, (tokens, count) in enumerate(zip(sequences, step, strict=True))
            if count
        ]
        logits = iter(torch.split(program.run(step_of(parts)).logits, [len(new) for new, _, _ in parts]))
        for i, count in enumerate(step):
            if count:
                got[i].append(next(logits))
                done[i] += count
    for i, tokens in enumerate(sequences):
        expected = oracle(model, tokens)[: done[i]]
        torch.testing.assert_close(torch.cat(got[i]), expected, atol=TOLERANCE, rtol=0)


@pytest.mark.parametrize("length", [200, 700])
def test_a_row_is_the_same_bits_however_it_is_computed(pair: tuple[Any, Path], length: int) -> None:
    _, folder = pair
    tokens = tokens_of(length)
    blocks = list(range(length // 16 + 1))
    whole = load_tiny(folder).run(step_of([(tokens, 0, blocks)])).logits
    for size in (1, 7, 9, 10, 11, 32, 150):
        program = load_tiny(folder)
        pieces = [
            program.run(step_of([(tokens[at : at + size], at, blocks)])).logits
            for at in range(0, length, size)
        ]
        assert torch.equal(torch.cat(pieces), whole)
    program = load_tiny(folder)
    other = tokens_of(90, seed=5)
    beside = program.run(step_of([(other, 0, list(range(50, 56))), (tokens, 0, blocks)])).logits
    assert torch.equal(beside[90:], whole)
