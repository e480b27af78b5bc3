"""What the whole suite shares."""

from __future__ import annotations

import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def small_model_path() -> Path:
    """The real small model: SmolLM2-135M-Instruct, GGUF Q4_1."""
    override = os.environ.get("TOKENMILL_TEST_MODEL")
    if override:
        return Path(override)
    from tokenmill.core.home import default_home
    from tokenmill.models.catalogue import DEFAULT_MODEL
    from tokenmill.models.pull import installed

    for found in installed(default_home()):
        if found.name == DEFAULT_MODEL:
            return found.path
    pytest.fail("the small model is not on this machine; type: make model")
