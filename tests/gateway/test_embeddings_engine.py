"""Embeddings out of the real engine, beside answers that must not change, over a tiny model."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import torch

from support.gateways import COMPLETIONS, EMBEDDINGS, RawCall
from support.tiny_models import save_tiny, save_tokenizer
from support.waiting import until
from tokenmill.core.bus import Bus
from tokenmill.core.flags import ModelFlags
from tokenmill.engine.worker import EngineWorker
from tokenmill.fleet.local import LocalReplica
from tokenmill.gateway.app import GatewayApp, ServedModel, build_app
from tokenmill.models.source import open_model
from tokenmill.observe.metrics import Metrics

TEXTS = ["hello world", "the model says hello", "x", "and the world " * 20]


@dataclass(frozen=True)
class Tiny:
    """A model behind the whole server but its socket, and transformers' idea of it."""

    oracle: Any
    worker: EngineWorker
    app: GatewayApp
    metrics: Metrics

    async def post(self, path: str, **body: object) -> dict[str, Any]:
        transport = httpx2.ASGITransport(app=self.app, raise_app_exceptions=False)
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost") as client:
            response = await client.post(path, json={"model": "tiny", **body}, timeout=60)
        assert response.status_code == 200, response.text
        answer: dict[str, Any] = response.json()
        return answer

    async def embed(self, texts: list[str]) -> np.ndarray[Any, Any]:
        answer = await self.post(EMBEDDINGS, input=texts)
        return np.array([item["embedding"] for item in answer["data"]])


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tiny]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    oracle = save_tiny("llama", folder)
    save_tokenizer(folder)
    bus, metrics = Bus(), Metrics("tiny", "0")
    bus.subscribe(metrics.on_event)
    flags = ModelFlags(
        dtype="float32", num_kv_blocks=64, max_num_seqs=4, max_num_batched_tokens=32, pooling="mean"
    )
    worker = EngineWorker(open_model(folder), flags, bus, name="tiny")
    worker.start()
    model = ServedModel(
        name="tiny",
        created=0,
        tokenizer=worker.tokenizer,
        chat_template=worker.chat_template,
        replica=LocalReplica(worker),
        max_model_len=worker.max_model_len,
        vocab_size=worker.vocab_size,
        pooling=worker.pooling,
        hidden=worker.hidden,
    )
    app = build_app(model, bus=bus, metrics=metrics, api_key=None)
    yield Tiny(oracle, worker, app, metrics)
    app.close()
    worker.stop()


def expected(tiny: Tiny, text: str) -> np.ndarray[Any, Any]:
    ids = tiny.worker.tokenizer.encode(text, add_special=True)
    with torch.no_grad():
        mean = tiny.oracle.model(torch.tensor([ids])).last_hidden_state[0].double().mean(dim=0)
    found: np.ndarray[Any, Any] = (mean / mean.norm()).numpy()
    return found


async def test_embeddings_are_the_mean_of_the_hidden_states(tiny: Tiny) -> None:
    found = await tiny.embed(TEXTS)
    np.testing.assert_allclose(found, [expected(tiny, text) for text in TEXTS], atol=1e-5)


async def test_answers_beside_embeddings_and_embeddings_beside_answers_are_the_same(tiny: Tiny) -> None:
    async def answer(prompt: str) -> str:
        body = {"prompt": prompt, "temperature": 0, "max_tokens": 40, "ignore_eos": True}
        text: str = (await tiny.post(COMPLETIONS, **body))["choices"][0]["text"]
        return text

    prompts = ["hello", "the world says", "x y z", "model and model"]
    alone = [await answer(prompt) for prompt in prompts]
    quiet = await tiny.embed(TEXTS)
    together, first, second = await asyncio.gather(
        asyncio.gather(*map(answer, prompts)), tiny.embed(TEXTS), tiny.embed(TEXTS * 5)
    )
    assert together == alone
    assert np.array_equal(first, quiet)
    assert np.array_equal(second, np.tile(quiet, (5, 1)))


async def test_scored_prompts_beside_answers_and_embeddings_are_the_same(tiny: Tiny) -> None:
    async def score() -> object:
        body = {"prompt": TEXTS, "echo": True, "logprobs": 2, "max_tokens": 1, "temperature": 0}
        return (await tiny.post(COMPLETIONS, **body))["choices"]

    alone = await score()
    first, _, second = await asyncio.gather(score(), tiny.embed(TEXTS * 3), score())
    assert first == second == alone


async def test_a_client_that_leaves_frees_every_block(tiny: Tiny) -> None:
    body = json.dumps({"model": "tiny", "input": ["hello world " * 60] * 200}).encode()
    call = RawCall(tiny.app, EMBEDDINGS, body)
    running = asyncio.create_task(call.run())
    await until(lambda: tiny.worker.load[0] > 0)
    call.hang_up.set()
    await running
    await until(lambda: tiny.worker.load == (0, 0) and tiny.worker.kv_blocks_active == 0)
    assert call.sent == []
