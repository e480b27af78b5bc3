"""Hand arithmetic on two layers: hidden 64, 4 heads and 2 KV heads of 16, inner width 96, vocabulary 40, F32."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from benchmarks.peers.limits import Model, Work, fractions
from benchmarks.peers.rows import Row
from support.model_files import write_gguf
from tokenmill.hardware.peaks import Peaks
from tokenmill.models.source import open_model

BODY = 2 * (64 * 64 + 2 * 32 * 64 + 64 * 64 + 3 * 64 * 96)
HEAD = 40 * 64
WEIGHTS = 4 * (BODY + HEAD + 5 * 64)  # five norms; the embeddings are not tied, so they are not read whole
PAIR = 2 * 2 * 4 * 16  # layers x (q.k and p.v) x heads x size of a head
KV = 2 * 2 * 2 * 16  # layers x (K and V) x KV heads x size of a head, a byte each

ROW = Row("small", "total", 2, 4, 3, 1.0)


def peaks_of(read: float, multiply_adds: float) -> Peaks:
    return Peaks(read, multiply_adds, 1)


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Model]:
    source = open_model(write_gguf(tmp_path / "small.gguf"))
    yield Model(source)
    source.weights.close()


def test_prefill_multiplies_every_token_and_the_vocabulary_once_a_prompt(model: Model) -> None:
    products = BODY * 8 + HEAD * 2 + PAIR * 2 * (1 + 2 + 3 + 4)
    assert model.prefill(ROW) == Work(WEIGHTS + KV * 8, products)


def test_decoding_reads_the_weights_at_every_step_and_each_context(model: Model) -> None:
    contexts = 2 * (5 + 6)
    assert model.decode(ROW) == Work(WEIGHTS * 2 + KV * contexts, (BODY + HEAD) * 4 + PAIR * contexts)


def test_the_slower_of_memory_and_arithmetic_is_the_limit() -> None:
    assert Work(100, 100).seconds(peaks_of(10, 50)) == 10
    assert Work(100, 100).seconds(peaks_of(50, 10)) == 10


def test_an_engine_at_the_limit_of_memory_uses_all_of_it(model: Model) -> None:
    peaks = peaks_of(1e6, 1e30)
    work = model.prefill(ROW) + model.decode(ROW)
    found = fractions(ROW, 6 / (work.bytes / 1e6), model, peaks)
    assert found["bandwidth"] == pytest.approx(1)
    assert found["limit"] == pytest.approx(1)
    assert found["int8"] == pytest.approx(0, abs=1e-9)


def test_half_the_speed_is_half_of_the_limit(model: Model) -> None:
    peaks = peaks_of(1e6, 1e6)
    assert fractions(ROW, 50, model, peaks)["limit"] == pytest.approx(
        fractions(ROW, 100, model, peaks)["limit"] / 2
    )


def test_decoding_alone_counts_no_prefill(model: Model) -> None:
    row = Row("decode", "decode", 2, 4, 3, 1.0)
    peaks = peaks_of(1e6, 1e30)
    seconds = model.decode(row).bytes / 1e6
    assert fractions(row, 4 / seconds, model, peaks)["limit"] == pytest.approx(1)
