"""Log-probabilities and embeddings of prompts against transformers, and bit for bit against themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.real_engine import RealModel, tokens
from support.tiny_models import VOCAB, save_tiny, save_tokenizer
from tokenmill.core.delta import Delta
from tokenmill.core.request import Pooling, SamplingParams

SCORED = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=3, ignore_eos=True)


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Any, RealModel]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    oracle = save_tiny("llama", folder)
    save_tokenizer(folder)
    return oracle, RealModel.load(folder, torch.float32)


@pytest.fixture(scope="module")
def prompts() -> list[list[int]]:
    generator = torch.Generator().manual_seed(5)
    lengths = (1, 2, 31, 70, 150, 200)
    return [[int(t) for t in torch.randint(3, VOCAB, (n,), generator=generator)] for n in lengths]


def logprobs(deltas: list[Delta]) -> list[float]:
    return [entry.logprob for entry in deltas[0].prompt_logprobs if entry is not None]


def test_log_probabilities_are_those_of_transformers(
    pair: tuple[Any, RealModel], prompts: list[list[int]]
) -> None:
    oracle, model = pair
    for prompt, deltas in zip(prompts, model.run(prompts, SCORED), strict=True):
        with torch.no_grad():
            table = torch.log_softmax(oracle(torch.tensor([prompt])).logits[0], dim=-1)
        for at, entry in enumerate(deltas[0].prompt_logprobs):
            if entry is None:
                assert at == 0
                continue
            assert entry.logprob == pytest.approx(float(table[at - 1, prompt[at]]), abs=1e-4)
            top = table[at - 1].topk(3)
            assert [one.token_id for one in entry.top] == top.indices.tolist()
            assert [one.logprob for one in entry.top] == pytest.approx(top.values.tolist(), abs=1e-4)
            assert entry.rank == 1 + int((table[at - 1] > table[at - 1, prompt[at]]).sum())


@pytest.mark.parametrize("flags", [{"max_num_batched_tokens": 7}, {"max_num_batched_tokens": 64}])
def test_log_probabilities_are_the_same_bits_however_prompts_are_cut(
    pair: tuple[Any, RealModel], prompts: list[list[int]], flags: dict[str, Any]
) -> None:
    _, model = pair
    alone = [model.run([prompt], SCORED)[0] for prompt in prompts]
    together = model.run(prompts, SCORED, **flags)
    for one, other in zip(alone, together, strict=True):
        assert one[0].prompt_logprobs == other[0].prompt_logprobs
        assert tokens(one) == tokens(other)


def test_reading_a_prompt_does_not_change_the_answer(
    pair: tuple[Any, RealModel], prompts: list[list[int]]
) -> None:
    _, model = pair
    plain = model.run(prompts, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True))
    assert [tokens(d) for d in model.run(prompts, SCORED)] == [tokens(d) for d in plain]


@pytest.mark.parametrize("pooling", ["mean", "last"])
def test_embeddings_are_the_pooled_hidden_states_of_transformers(
    pair: tuple[Any, RealModel], prompts: list[list[int]], pooling: Pooling
) -> None:
    oracle, model = pair
    found = [model.embed([prompt], pooling)[0] for prompt in prompts]
    assert model.embed(prompts, pooling, max_num_batched_tokens=7) == found
    for prompt, data in zip(prompts, found, strict=True):
        with torch.no_grad():
            states = oracle.model(torch.tensor([prompt])).last_hidden_state[0].double()
        pooled = states.mean(dim=0) if pooling == "mean" else states[-1]
        expected = (pooled / pooled.norm()).numpy()
        np.testing.assert_allclose(np.frombuffer(data, "<f4"), expected, atol=1e-5)
