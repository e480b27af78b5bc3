"""Who may reach the server, and what its model is called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tokenmill.cli.load import public_name
from tokenmill.cli.serve import check_address, is_loopback
from tokenmill.core.errors import ConfigError
from tokenmill.core.flags import ServerFlags


@pytest.mark.parametrize("host", ["127.0.0.1", "127.9.9.9", "::1", "localhost"])
def test_loopback_is_this_machine_alone(host: str) -> None:
    assert is_loopback(host)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "::ffff:10.0.0.1"])  # noqa: S104
def test_anything_else_is_not(host: str) -> None:
    assert not is_loopback(host)


def test_an_open_address_is_fine_with_a_key() -> None:
    check_address(ServerFlags(host="0.0.0.0", port=0, api_key="long-enough"))  # noqa: S104
    with pytest.raises(ConfigError, match="set --api-key"):
        check_address(ServerFlags(host="0.0.0.0", port=0))  # noqa: S104


@pytest.mark.parametrize(
    ("model", "name"),
    [
        ("smollm2-135m-instruct", "smollm2-135m-instruct"),
        ("org/name", "org/name"),
        ("org/name:file.gguf", "org/name"),
        ("org/name@main", "org/name"),
    ],
)
def test_clients_use_the_name_the_user_gave(model: str, name: str) -> None:
    assert public_name(model, "some-file") == name


def test_clients_never_see_a_path(tmp_path: Path) -> None:
    assert public_name(str(tmp_path), "some-file") == "some-file"
