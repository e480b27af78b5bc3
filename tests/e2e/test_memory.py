"""A model of a real size takes the memory that was planned for it: Qwen3-0.6B's shapes, sixteen streams."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from support.large_models import write_qwen3

TESTS = Path(__file__).parents[1]
STREAMS, PROMPT, OUTPUT = 16, 32, 20
# Streams that ask for everything: drawn from most of a vocabulary, with log-probabilities of every token, some of
# their prompts too. Greedy ones would leave the sampler's share of the plan unused.
ASKED = {
    "flags": {
        "dtype": "bfloat16",
        "max_num_seqs": STREAMS,
        "max_model_len": 128,
        "num_kv_blocks": STREAMS * 4,
    },
    "streams": STREAMS,
    "prompt": PROMPT,
    "output": OUTPUT,
    "sampling": {"temperature": 1.0, "top_p": 0.95, "logprobs": 2},
    "scored": 8,
}


@pytest.fixture
def model(tmp_path: Path) -> Iterator[Path]:
    """1.2 GB, gone after the test."""
    write_qwen3(tmp_path)
    yield tmp_path
    shutil.rmtree(tmp_path)


def served(model: Path, **environment: str) -> dict[str, Any]:
    """What a fresh process planned and took."""
    done = subprocess.run(
        [sys.executable, "-m", "support.streams_process", str(model), json.dumps(ASKED)],
        env={**os.environ, **environment, "PYTHONPATH": os.pathsep.join((str(TESTS), *sys.path))},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def told(found: dict[str, Any]) -> str:
    lines = [f"{name}: planned {p >> 20} MiB, loaded {m >> 20}" for name, (p, m) in found["parts"].items()]
    return "\n".join([*lines, f"total: planned {found['planned'] >> 20} MiB, peak {found['peak'] >> 20}"])


def test_peak_memory_is_what_was_planned_within_three_percent(
    model: Path, record_property: Callable[[str, object], None]
) -> None:
    found = served(model, TOKENMILL_CPU_ISA="none")
    assert found["errors"] == []
    assert found["lengths"] == [OUTPUT] * STREAMS
    record_property("memory", told(found))
    # 155,582,464 embeddings and 28 x 15,728,640 of each layer in 2 bytes, 57 norms of 1024 and 56 of 128 in 4;
    # cosines and sines of 128 positions, 64 each in 4
    matrices, norms = 155_582_464 + 28 * 15_728_640, 57 * 1024 + 56 * 128
    assert found["parts"]["weights"][0] == 2 * matrices + 4 * (norms + 2 * 128 * 64)
    assert found["planned"] == pytest.approx(found["peak"], rel=0.03), told(found)


def test_packed_weights_take_what_was_planned(
    model: Path, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    home = str(tmp_path / "home")
    served(model, TOKENMILL_HOME=home)  # packs, with one matrix at a time in float beside
    found = served(model, TOKENMILL_HOME=home)
    assert found["errors"] == []
    record_property("memory", told(found))
    # A number takes a byte, and 32 of them a scale in 2 bytes; norms and angles as above
    matrices, norms = 155_582_464 + 28 * 15_728_640, 57 * 1024 + 56 * 128
    planned, measured = found["parts"]["weights"]
    assert planned == matrices + matrices // 32 * 2 + 4 * (norms + 2 * 128 * 64)
    assert planned == pytest.approx(measured, rel=0.03), told(found)
    assert found["planned"] == pytest.approx(found["peak"], rel=0.03), told(found)
