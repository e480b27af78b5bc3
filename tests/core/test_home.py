"""Where this user's files lie."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.core.home import default_home


def test_the_home_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/somewhere")
    monkeypatch.delenv("TOKENMILL_HOME", raising=False)
    monkeypatch.delenv("XDG_CACHE_HOME", raising=False)
    assert default_home() == Path("/somewhere/.cache/tokenmill")
    monkeypatch.setenv("XDG_CACHE_HOME", "/cache")
    assert default_home() == Path("/cache/tokenmill")
    monkeypatch.setenv("TOKENMILL_HOME", "~/models")
    assert default_home() == Path("/somewhere/models")
