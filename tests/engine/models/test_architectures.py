"""Logits of every architecture against transformers, in prefill, in pieces, and in paged decode."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.tiny_models import VOCAB, load_tiny, save_tiny, step_of

TOLERANCE = 1e-4

LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
YARN = {"rope_type": "yarn", "rope_theta": 10000.0, "factor": 4.0, "original_max_position_embeddings": 64}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "short_factor": [1.0 + 0.05 * pair for pair in range(6)],
    "long_factor": [1.5 + 0.5 * pair for pair in range(6)],
    "partial_rotary_factor": 0.75,
}
LOCAL_AND_GLOBAL = {
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
    "full_attention": {"rope_type": "linear", "rope_theta": 1000000.0, "factor": 8.0},
}
SLIDING = ["sliding_attention", "full_attention", "sliding_attention"]

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-multi-head": ("llama", {"num_key_value_heads": 6}),
    "llama-one-kv-head": ("llama", {"num_key_value_heads": 1}),
    "llama-gelu": ("llama", {"hidden_act": "gelu_pytorch_tanh"}),
    "llama3-rope": ("llama", {"rope_parameters": LLAMA3}),
    "llama-linear-rope": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 4.0}},
    ),
    "llama-dynamic-rope": (
        "llama",
        {
            "max_position_embeddings": 256,
            "rope_parameters": {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0},
        },
    ),
    "llama-yarn": ("llama", {"rope_parameters": YARN}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral-window": ("mistral", {"sliding_window": 40}),
    "mistral3-pictures": ("mistral3-pictures", {"sliding_window": None}),
    "qwen2": ("qwen2", {}),
    "qwen2-windows": (
        "qwen2",
        {"use_sliding_window": True, "sliding_window": 40, "max_window_layers": 1},
    ),
    "qwen3": ("qwen3", {}),
    "qwen3-tied-yarn": ("qwen3", {"tie_word_embeddings": True, "rope_parameters": YARN}),
    "gemma3": ("gemma3", {"sliding_window": 40, "layer_types": SLIDING}),
    "gemma3-scaled": (
        "gemma3",
        {
            "sliding_window": 200,
            "layer_types": SLIDING,
            "query_pre_attn_scalar": 30,
            "rope_parameters": LOCAL_AND_GLOBAL,
        },
    ),
    "gemma3-pictures": ("gemma3-pictures", {"sliding_window": 40, "layer_types": SLIDING}),
    "phi3": ("phi3", {}),
    "phi3-window": ("phi3", {"sliding_window": 40}),
    "phi3-longrope-short": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 1024},
    ),
    "phi3-longrope-long": (
        "phi3",
        {"rope_parameters": LONGROPE, "original_max_position_embeddings": 64},
    ),
    "mixtral": ("mixtral", {}),
    "mixtral-window": ("mixtral", {"sliding_window": 40}),
    "qwen3-moe": ("qwen3_moe", {"norm_topk_prob": True}),
    "qwen3-moe-some-layers": ("qwen3_moe", {"mlp_only_layers": [1], "attention_bias": True}),
}


@pytest.fixture(scope="module", params=VARIANTS)
def pair(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, Path]:
    kind, changes = VARIANTS[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    return save_tiny(kind, folder, **changes), folder


def oracle(model: Any, tokens: list[int]) -> torch.Tensor:
    """Logits by transformers, in a sequence as long as the model is served at here: some rotary embeddings
    depend on the length, and what follows a token changes nothing else about it."""
    following = [3] * (1024 - len(tokens))
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens + following])).logits[0]
    return logits[: len(tokens)]


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


# Every operator and kind of layer once.
@pytest.mark.parametrize(
    "pair",
    [
        "llama",
        "mistral-window",
        "qwen2-windows",
        "gemma3",
        "phi3-longrope-long",
        "mixtral",
        "qwen3-moe-some-layers",
    ],
    indirect=True,
)
@pytest.mark.parametrize(
    ("length", "sizes"), [(200, (1, 7, 9, 10, 11, 32, 150)), (700, (1, 11, 150))], ids=["short", "long"]
)
def test_a_row_is_the_same_bits_however_it_is_computed(
    pair: tuple[Any, Path], length: int, sizes: tuple[int, ...]
) -> None:
    assert_same_bits(pair[1], length, sizes, torch.float32)


@pytest.mark.parametrize("pair", ["llama-biases", "gemma3", "mixtral"], indirect=True)
def test_a_row_is_the_same_bits_in_bfloat16_too(pair: tuple[Any, Path]) -> None:
    assert_same_bits(pair[1], 700, (1, 11, 150), torch.bfloat16)


def assert_same_bits(folder: Path, length: int, sizes: tuple[int, ...], dtype: torch.dtype) -> None:
    """Whole, in pieces of each size, and beside another sequence."""
    tokens = tokens_of(length)
    blocks = list(range(length // 16 + 1))
    whole = load_tiny(folder, dtype=dtype).run(step_of([(tokens, 0, blocks)])).logits
    for size in sizes:
        program = load_tiny(folder, dtype=dtype)
        pieces = [
            program.run(step_of([(tokens[at : at + size], at, blocks)])).logits
            for at in range(0, length, size)
        ]
        assert torch.equal(torch.cat(pieces), whole)
    program = load_tiny(folder, dtype=dtype)
    other = tokens_of(90, seed=5)
    beside = program.run(step_of([(other, 0, list(range(50, 56))), (tokens, 0, blocks)])).logits
    assert torch.equal(beside[90:], whole)
