"""Nested objects of request fields: which members they may have, and which names."""

from __future__ import annotations

import re
from collections.abc import Collection

from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest, UnsupportedParameter

_NAME = re.compile(r"[a-zA-Z0-9_-]{1,64}")


def known_members(where: str, value: object, known: Collection[str]) -> dict[str, object]:
    """An object's members without nulls. Raises UnsupportedParameter for one that is not known."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be an object, not {show(value)}", param=where)
    given = {key: item for key, item in value.items() if item is not None}
    for key in given:
        if key not in known:
            raise UnsupportedParameter(
                f"{where} has {show(key)}, which is not supported there", param=f"{where}.{key[:64]}"
            )
    return given


def short_name(where: str, value: object) -> str:
    """A name as the API allows it for functions and schemas."""
    if not isinstance(value, str) or _NAME.fullmatch(value) is None:
        raise InvalidRequest(
            f"{where} must be 1 to 64 letters, digits, underscores and dashes, not {show(value)}", param=where
        )
    return value
