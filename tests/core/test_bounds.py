"""Depth is counted in containers, by one rule for every bound."""

from __future__ import annotations

import json

import pytest

from tokenmill.core import bounds
from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import Grammar
from tokenmill.gateway.json_schema import parse_schema


def nested(levels: int, inside: object = "x") -> object:
    """A schema of so many objects, one in the other, with a plain value in the innermost."""
    value: object = {"title": inside}
    for _ in range(levels - 1):
        value = {"items": value}
    return value


@pytest.mark.parametrize(
    ("value", "levels"), [(1, 0), ("[[", 0), ([], 1), ({}, 1), ({"a": 1}, 1), ([1, {"a": [2]}, 3], 3)]
)
def test_a_container_is_a_level_and_a_plain_value_is_none(value: object, levels: int) -> None:
    assert not bounds.deeper_than(value, levels)
    assert levels == 0 or bounds.deeper_than(value, levels - 1)


def test_gateway_and_engine_draw_the_line_of_a_schema_at_the_same_place() -> None:
    deepest, deeper = nested(bounds.MAX_SCHEMA_DEPTH), nested(bounds.MAX_SCHEMA_DEPTH + 1)
    assert parse_schema("guided_json", deepest) == deepest
    bounds.grammar(Grammar("json_schema", json.dumps(deepest)))
    with pytest.raises(InvalidRequest, match="at most 32 levels"):
        parse_schema("guided_json", deeper)
    with pytest.raises(InvalidRequest, match="deeper than 32 levels"):
        bounds.grammar(Grammar("json_schema", json.dumps(deeper)))
