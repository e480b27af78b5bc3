"""What each flag allows, in words, and the refusal of values and names outside it."""

from __future__ import annotations

import difflib
import types
from collections.abc import Iterable, Mapping
from typing import Annotated, Literal, NoReturn, TypeVar, Union, get_args, get_origin

from annotated_types import Ge, Gt, Le, MinLen
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo
from pydantic_core import ErrorDetails

from tokenmill.core.bounds import show
from tokenmill.core.errors import ConfigError

# Keys whose value never appears in a message.
SECRET = frozenset({"api_key"})

Table = TypeVar("Table", bound=BaseModel)


def plain_type(field: FieldInfo) -> object:
    """The field's type without `| None` and without what `Annotated` adds."""
    found: object = field.annotation
    if get_origin(found) in (Union, types.UnionType):
        found = next(part for part in get_args(found) if part is not type(None))
    return get_args(found)[0] if get_origin(found) is Annotated else found


def choices(field: FieldInfo) -> tuple[str, ...]:
    """The words a field allows; empty when it is not a choice."""
    found = plain_type(field)
    return tuple(str(word) for word in get_args(found)) if get_origin(found) is Literal else ()


def allowed(field: FieldInfo) -> str:
    """The rule of a field as the end of a sentence: `must be an integer from 0 to 65535`."""
    words = choices(field)
    if words:
        return "must be " + (words[0] if len(words) == 1 else ", ".join(words[:-1]) + " or " + words[-1])
    kind = plain_type(field)
    if kind is bool:
        return "must be true or false"
    if kind is str:
        shortest = next((rule.min_length for rule in field.metadata if isinstance(rule, MinLen)), 0)
        return f"must be text of at least {shortest} characters" if shortest else "must be text"
    return f"must be {'an integer' if kind is int else 'a number'}{_span(field)}"


def _span(field: FieldInfo) -> str:
    least = greatest = above = None
    for rule in field.metadata:
        match rule:
            case Ge(ge=bound):
                least = bound
            case Gt(gt=bound):
                above = bound
            case Le(le=bound):
                greatest = bound
    if least is not None:
        return f" of at least {least}" if greatest is None else f" from {least} to {greatest}"
    if above is not None:
        return f" above {above}" + ("" if greatest is None else f" and at most {greatest}")
    return ""


def build(
    table: type[Table], values: Mapping[str, object], sources: Mapping[str, str] | None = None
) -> Table:
    """Checks `values`, by field name, against a table.

    Args:
        sources: where each value came from, as the user wrote it; default: the field name itself.

    Raises:
        ConfigError: an unknown name, or the first value that does not fit.
    """
    for name, value in values.items():
        if name not in table.model_fields:
            raise ConfigError(f"unknown flag {name}; did you mean {nearest(name, table.model_fields)}?")
        # Pydantic would take true for the number 1.
        if isinstance(value, bool) and plain_type(table.model_fields[name]) is not bool:
            _refuse(name, value, sources, allowed(table.model_fields[name]))
    try:
        return table(**values)
    except ValidationError as error:
        first = error.errors()[0]
        name = str(first["loc"][0])
        _refuse(name, values[name], sources, _broken_rule(first, table.model_fields[name]))


def _broken_rule(error: ErrorDetails, field: FieldInfo) -> str:
    if error["type"] == "value_error":
        return str(error["ctx"]["error"])
    return allowed(field)


def _refuse(name: str, value: object, sources: Mapping[str, str] | None, rule: str) -> NoReturn:
    source = sources[name] if sources is not None else name
    shown = source if name in SECRET else f"{source}={show(value)}"
    raise ConfigError(f"{shown}: {rule}", param=name)


def nearest(name: str, known: Iterable[str]) -> str:
    """The known name most like `name`."""
    return difflib.get_close_matches(name, list(known), n=1, cutoff=0.0)[0]
