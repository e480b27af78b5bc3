"""A fresh gateway for each test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.gateways import Gateway, make_gateway


@pytest.fixture
def gateway() -> Iterator[Gateway]:
    made = make_gateway()
    yield made
    made.app.close()
