"""Values the flag table refuses although their type is right."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import ConfigError
from tokenmill.core.flag_rules import build
from tokenmill.core.flags import ModelFlags, ServerFlags


@pytest.mark.parametrize(
    "key",
    [
        " secret-key",
        "secret-key\n",
        "secret-key\t",
        "secret\x00key",
        "secret\x7fkey",
        "secret\r\nkey",
    ],
)
def test_a_key_that_no_header_can_carry_is_refused_and_not_repeated(key: str) -> None:
    with pytest.raises(ConfigError, match="printable text without spaces at either end") as refused:
        build(ServerFlags, {"api_key": key})
    assert "secret" not in refused.value.message
    assert "api_key" in refused.value.message


@pytest.mark.parametrize("key", ["secret-key", "secret key with spaces", "clé-secrète"])
def test_any_other_key_is_taken(key: str) -> None:
    assert build(ServerFlags, {"api_key": key}).api_key == key


def test_several_names_stand_with_commas_between_them() -> None:
    assert build(ModelFlags, {"served_model_name": "a/b, gpt-x,a/b"}).served_names == ("a/b", "gpt-x")
    assert build(ModelFlags, {}).served_names == ()
    with pytest.raises(ConfigError, match="none of them empty"):
        build(ModelFlags, {"served_model_name": "a,,b"})
