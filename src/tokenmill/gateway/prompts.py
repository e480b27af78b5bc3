"""Texts as clients send them: strings or token ids, one or many."""

from __future__ import annotations

from tokenmill.core import bounds
from tokenmill.core.bounds import show
from tokenmill.core.errors import ContextLengthExceeded, InvalidRequest
from tokenmill.gateway.served import ServedModel

Prompt = str | tuple[int, ...]


def parse_texts(field: str, value: object, model: ServedModel, *, most: int) -> list[Prompt]:
    """A string, a list of at most `most` strings, a list of token ids, or a list of such lists.

    Raises:
        InvalidRequest: anything else.
        ContextLengthExceeded: more token ids than the model holds.
    """
    if isinstance(value, str):
        return [bounds.text(field, value)]
    if not isinstance(value, list) or not value:
        raise InvalidRequest(
            f"{field} must be a string, a list of strings, token ids or lists of token ids, "
            f"not {show(value)}",
            param=field,
        )
    if isinstance(value[0], int):
        return [_token_text(field, value, model)]
    if len(value) > most:
        raise InvalidRequest(f"{field} must have at most {most} items, not {len(value)}", param=field)
    if isinstance(value[0], list):
        return [_token_text(field, item, model) for item in value]
    return [bounds.text(field, item) for item in value]


def _token_text(field: str, value: object, model: ServedModel) -> tuple[int, ...]:
    if isinstance(value, list) and len(value) > model.max_model_len:
        raise ContextLengthExceeded(
            f"this model holds {model.max_model_len} tokens; the {field} has {len(value)}"
        )
    return bounds.token_ids(field, value, max_items=model.max_model_len)
