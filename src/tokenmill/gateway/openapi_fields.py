"""The request fields of every route as JSON Schema. The bounds are those of `core.bounds`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from tokenmill.core import bounds
from tokenmill.gateway.openai_fields import Fields
from tokenmill.gateway.served import ServedModel

Schema = dict[str, object]


def _number(field: str, **more: object) -> Schema:
    row = bounds.NUMBERS[field]
    low = "exclusiveMinimum" if row.low_open else "minimum"
    return {"type": "integer" if row.integer else "number", low: row.low, "maximum": row.high, **more}


def _text(**more: object) -> Schema:
    return {"type": "string", **more}


def _list(items: Schema, most: int, least: int = 0) -> Schema:
    return {"type": "array", "items": items, "minItems": least, "maxItems": most}


def _closed(properties: Mapping[str, object], *required: str) -> Schema:
    return {
        "type": "object",
        "properties": dict(properties),
        "required": list(required),
        "additionalProperties": False,
    }


def _texts(most: int, **text: object) -> Schema:
    """A text, several, a list of token ids, or several such lists."""
    tokens = _list(_TOKEN, bounds.MAX_DETOKENIZE_IDS, 1)
    return {"anyOf": [_text(**text), _list(_text(**text), most, 1), tokens, _list(tokens, most, 1)]}


_BOOLEAN: Schema = {"type": "boolean"}
_TOKEN: Schema = {"type": "integer", "minimum": 0}
_STOP = _text(minLength=1, maxLength=bounds.MAX_STOP_CHARS)
_TEXT_PART = _closed({"type": {"const": "text"}, "text": _text(), "cache_control": {}}, "type", "text")
_REFUSAL_PART = _closed(
    {"type": {"const": "refusal"}, "refusal": _text(), "cache_control": {}}, "type", "refusal"
)
_CONTENT: Schema = {"anyOf": [_text(), _list(_TEXT_PART, bounds.MAX_PARTS, 1)]}
_ANSWER_PARTS = _list({"anyOf": [_TEXT_PART, _REFUSAL_PART]}, bounds.MAX_PARTS, 1)
_NAME = _text(pattern="^[a-zA-Z0-9_-]{1,64}$")
_NAMED_BY = _text(maxLength=bounds.MAX_NAME_CHARS)
_CALL = _closed(
    {
        "id": _NAMED_BY,
        "type": {"const": "function"},
        "function": _closed({"name": _NAME, "arguments": _text()}, "name", "arguments"),
        "index": {},
    },
    "id",
    "function",
)
_CALLS = _list(_CALL, bounds.MAX_TOOL_CALLS)
_ASSISTANT: Schema = {
    "role": {"const": "assistant"},
    "content": {"anyOf": [_text(), _ANSWER_PARTS, {"type": "null"}]},
    "tool_calls": {"anyOf": [_CALLS, {"type": "null"}]},
    "name": _NAMED_BY,
    "reasoning_content": {"type": ["string", "null"]},
    "reasoning": {},
    "refusal": {},
    "annotations": {},
}
# An assistant says something, or has something instead.
_SAID: tuple[Schema, ...] = (
    {"content": {"anyOf": [_text(), _ANSWER_PARTS]}},
    {"tool_calls": _CALLS},
    {"refusal": _text()},
)
_MESSAGE: Schema = {
    "anyOf": [
        _closed(
            {"role": {"enum": ["system", "developer", "user"]}, "content": _CONTENT, "name": _NAMED_BY},
            "role",
            "content",
        ),
        *(_closed({**_ASSISTANT, **said}, "role", *said) for said in _SAID),
        _closed(
            {"role": {"const": "tool"}, "content": _CONTENT, "tool_call_id": _NAMED_BY},
            "role",
            "content",
            "tool_call_id",
        ),
    ]
}

_OBJECT: Schema = {"type": "object"}
# The members of a schema that this server reads itself; others are for the compiler.
_PARAMETERS: Schema = {
    "type": "object",
    "properties": {
        "type": {"const": "object"},
        "properties": {"type": "object", "additionalProperties": {"type": ["object", "boolean"]}},
        "required": {"type": "array", "items": _text()},
        "additionalProperties": {"type": ["object", "boolean"]},
    },
}
_SOURCE = _text(minLength=1, maxLength=bounds.MAX_GRAMMAR_CHARS)
_CHOICES = _list(_SOURCE, bounds.MAX_GUIDED_CHOICES, 1)
_TOOL = _closed(
    {
        "type": {"const": "function"},
        "function": _closed(
            {
                "name": _NAME,
                "description": _text(maxLength=bounds.MAX_DESCRIPTION_CHARS),
                "parameters": _PARAMETERS,
                "strict": _BOOLEAN,
            },
            "name",
        ),
    },
    "type",
    "function",
)
_NAMED = _closed(
    {"type": {"const": "function"}, "function": _closed({"name": _NAME}, "name")}, "type", "function"
)
_JSON_SCHEMA = _closed(
    {
        "name": _NAME,
        "description": _text(maxLength=bounds.MAX_DESCRIPTION_CHARS),
        "schema": _OBJECT,
        "strict": _BOOLEAN,
    },
    "name",
    "schema",
)
_FORMAT: Schema = {
    "anyOf": [
        _closed({"type": {"enum": ["text", "json_object"]}}, "type"),
        _closed({"type": {"const": "json_schema"}, "json_schema": _JSON_SCHEMA}, "type", "json_schema"),
    ]
}
_STRUCTURED: Schema = {
    "anyOf": [
        _closed({name: form}, name)
        for name, form in (
            ("json", _OBJECT),
            ("regex", _SOURCE),
            ("choice", _CHOICES),
            ("grammar", _SOURCE),
            ("json_object", _BOOLEAN),
        )
    ]
}

FIELDS: Mapping[str, Schema] = {
    "messages": _list(_MESSAGE, bounds.MAX_MESSAGES, 1),
    "prompt": _texts(bounds.MAX_PROMPTS),
    "input": _texts(bounds.MAX_EMBEDDING_INPUTS, minLength=1),
    "encoding_format": {"enum": ["float", "base64"]},
    "tokens": _list(_TOKEN, bounds.MAX_DETOKENIZE_IDS),
    **{
        name: _number(name)
        for name in (
            "temperature",
            "top_p",
            "min_p",
            "presence_penalty",
            "frequency_penalty",
            "repetition_penalty",
            "seed",
            "n",
            "best_of",
            "top_logprobs",
            "min_tokens",
            "max_tokens",
            "max_completion_tokens",
            "prompt_logprobs",
        )
    },
    "top_k": _number("top_k", minimum=-1),
    "stop": {"anyOf": [_STOP, _list(_STOP, bounds.MAX_STOPS)]},
    "stop_token_ids": _list(_TOKEN, bounds.MAX_STOP_TOKEN_IDS),
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,10}$"},
        "additionalProperties": _number("logit_bias"),
        "maxProperties": bounds.MAX_LOGIT_BIAS,
    },
    "stream_options": _closed({"include_usage": _BOOLEAN, "include_obfuscation": _BOOLEAN}),
    "tools": _list(_TOOL, bounds.MAX_TOOLS),
    "tool_choice": {"anyOf": [{"enum": ["none", "auto", "required"]}, _NAMED]},
    "chat_template_kwargs": _OBJECT,
    "response_format": _FORMAT,
    "structured_outputs": _STRUCTURED,
    "guided_json": {"anyOf": [_OBJECT, _text()]},
    "guided_regex": _SOURCE,
    "guided_choice": _CHOICES,
    "guided_grammar": _SOURCE,
    **dict.fromkeys(
        (
            "stream",
            "ignore_eos",
            "echo",
            "add_special_tokens",
            "add_generation_prompt",
            "return_token_strs",
            "parallel_tool_calls",
        ),
        _BOOLEAN,
    ),
}


CHAT_OWN: Mapping[str, Schema] = {
    "logprobs": _BOOLEAN,
    "max_tokens": _number("max_completion_tokens"),
}
COMPLETIONS_OWN: Mapping[str, Schema] = {
    "logprobs": {"anyOf": [{"const": False}, _number("completions_logprobs")]},
}


def body_schema(
    taken: Fields, required: Iterable[str], model: ServedModel, own: Mapping[str, Schema]
) -> Schema:
    """The body of a route that takes these fields, those that change nothing included.

    Each optional one may be null, which is the same as leaving it out.
    """
    needed = sorted(required)
    served: Mapping[str, Schema] = {
        "model": {"enum": list(model.names)},
        "dimensions": {"const": model.hidden},
    }
    known = {**FIELDS, **{name: dict(no_op.schema) for name, no_op in taken.no_ops.items()}, **served, **own}
    properties = {
        name: known[name] if name in needed else {"anyOf": [known[name], {"type": "null"}]}
        for name in sorted({*taken.implemented, *taken.no_ops})
    }
    return {"type": "object", "properties": properties, "required": needed, "additionalProperties": False}
