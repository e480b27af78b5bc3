"""One real server for the tests that only ask it things."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from support.served import Served, serving


@pytest.fixture(scope="session")
def server(small_model_path: Path) -> Iterator[Served]:
    """The real model, small enough that its bounds are soon reached."""
    flags = ("--served-model-name", "org/tiny", "--max-model-len", "512", "--num-kv-blocks", "64")
    with serving(small_model_path, *flags) as running:
        yield running
