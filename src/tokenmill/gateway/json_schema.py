"""JSON schemas of requests: bounded here, compiled by the engine."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from tokenmill.core import bounds
from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest

Schema = Mapping[str, object]


def parse_schema(where: str, value: object) -> Schema:
    """A schema that is an object, within the bounds of size and depth. Raises InvalidRequest."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"{where} must be a JSON schema, an object, not {show(value)}", param=where)
    if (size := len(msgspec.json.encode(value))) > bounds.MAX_SCHEMA_BYTES:
        raise InvalidRequest(
            f"{where} must have at most {bounds.MAX_SCHEMA_BYTES} bytes, not {size}", param=where
        )
    if bounds.deeper_than(value, bounds.MAX_SCHEMA_DEPTH):
        raise InvalidRequest(f"{where} must be at most {bounds.MAX_SCHEMA_DEPTH} levels deep", param=where)
    return value


def compiled_text(schema: Schema, *, strict: bool) -> str:
    """The schema as the grammar library reads it, with its own member for options.

    Args:
        strict: keywords the compiler cannot enforce are an error; otherwise they are passed over.
    """
    options = {"whitespace_pattern": bounds.JSON_WHITESPACE, "lenient": not strict}
    return msgspec.json.encode({**schema, "x-guidance": options}).decode()
