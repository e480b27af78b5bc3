"""The npm packages `openai` and `ai` against a real server: they stream, call tools and parse structured output."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.served import Served, serving

FOLDER = Path(__file__).parent / "node"


@pytest.fixture(scope="module")
def server(small_model_path: Path) -> Iterator[Served]:
    flags = ("--max-model-len", "1024", "--num-kv-blocks", "128", "--pooling", "mean")
    with serving(small_model_path, "--served-model-name", "tiny", *flags) as served:
        yield served


@pytest.mark.timeout(900)
@pytest.mark.parametrize("file", ["openai.test.mjs", "ai.test.mjs"])
def test_an_sdk_works_unchanged(server: Served, file: str) -> None:
    if not (FOLDER / "node_modules").is_dir():
        pytest.fail("the npm packages are missing: bash scripts/install.sh --test installs them")
    ran = subprocess.run(
        ["node", "--test", "--test-reporter=tap", file],
        cwd=FOLDER,
        env={**os.environ, "TOKENMILL_URL": server.url, "TOKENMILL_MODEL": server.model},
        capture_output=True,
        text=True,
        timeout=800,
        check=False,
    )
    assert ran.returncode == 0, ran.stdout[-5000:] + ran.stderr[-2000:]
    assert "# fail 0" in ran.stdout
