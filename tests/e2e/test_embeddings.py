"""Embeddings and scored prompts of the real small model, through the official client."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import openai
import pytest
import torch

from support.real_engine import RealModel
from support.served import Served, serving
from support.tiny_models import step_of

TEXTS = [
    "The capital of France is Paris.",
    "Salt dissolves in water.",
    "x",
    "When winter came they built small houses near the river. " * 12,
]


@pytest.fixture(scope="module")
def embedding_server(small_model_path: Path) -> Iterator[Served]:
    flags = ("--pooling", "mean", "--dtype", "float32", "--max-model-len", "512", "--num-kv-blocks", "64")
    with serving(small_model_path, *flags) as running:
        yield running


@pytest.fixture(scope="module")
def client(embedding_server: Served) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{embedding_server.url}/v1", api_key="none", max_retries=0) as made:
        yield made


@pytest.fixture(scope="module")
def model(small_model_path: Path) -> RealModel:
    return RealModel.load(small_model_path, torch.float32, num_blocks=32)


def states_and_logits(model: RealModel, ids: list[int]) -> tuple[torch.Tensor, torch.Tensor]:
    """Of every position, by the program alone: no engine, no chunks."""
    step = step_of([(ids, 0, list(range(32)))], block_size=32)
    output = model.program.run(replace(step, hidden_rows=step.logit_rows))
    return output.hidden, output.logits


def test_embeddings_are_the_mean_of_the_hidden_states(
    embedding_server: Served, client: openai.OpenAI, model: RealModel
) -> None:
    answer = client.embeddings.create(model=embedding_server.model, input=TEXTS)
    for text, item in zip(TEXTS, answer.data, strict=True):
        states, _ = states_and_logits(model, model.tokenizer.encode(text, add_special=True))
        mean = states.double().mean(dim=0)
        np.testing.assert_allclose(item.embedding, (mean / mean.norm()).numpy(), atol=1e-5)


def test_a_scored_prompt_has_the_log_probabilities_of_the_model(
    embedding_server: Served, client: openai.OpenAI, model: RealModel
) -> None:
    ids = model.tokenizer.encode(TEXTS[3], add_special=True)
    answer = client.completions.create(
        model=embedding_server.model, prompt=ids, echo=True, logprobs=1, max_tokens=1, temperature=0
    )
    lists = answer.choices[0].logprobs
    assert lists is not None
    assert lists.token_logprobs is not None
    _, logits = states_and_logits(model, ids)
    table = torch.log_softmax(logits, dim=-1)
    expected = [float(table[at, token]) for at, token in enumerate(ids[1:])]
    assert lists.token_logprobs[0] is None
    np.testing.assert_allclose(np.array(lists.token_logprobs[1:-1], dtype=float), expected, atol=1e-4)
    assert answer.choices[0].text.startswith(model.tokenizer.decode(ids))


def test_without_the_flag_a_model_for_chat_has_no_embeddings(server: Served) -> None:
    with (
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as client,
        pytest.raises(openai.InternalServerError, match="--pooling mean") as caught,
    ):
        client.embeddings.create(model=server.model, input="hello")
    assert caught.value.status_code == 501
