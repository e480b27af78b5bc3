"""The one validation table. Every front end checks with it, and so does the engine itself.

Each row says which values a field may take. Callers pass what the client sent; a refusal names the
field, shows the value and says what is allowed.
"""

from __future__ import annotations

import math
import reprlib
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import Grammar, SamplingParams

MAX_BODY_BYTES = 8 << 20
MAX_HEADER_BYTES = 32 << 10
MAX_JSON_DEPTH = 64
# Commas and opening brackets, also those inside strings: what decoding takes depends on them.
MAX_JSON_ITEMS = 200_000
MAX_MESSAGES = 2048
MAX_PARTS = 1024
MAX_PROMPTS = 128
MAX_CHOICES = 256
MAX_EMBEDDING_INPUTS = 2048
MAX_EMBEDDING_TOKENS = 300_000
MAX_TOOL_CALLS = 128
MAX_TOOLS = 128
MAX_TOOLS_BYTES = 64 << 10
MAX_DESCRIPTION_CHARS = 16 << 10
# Calls of one answer.
MAX_CALLS = 32
# A regex or grammar that a client writes.
MAX_GRAMMAR_CHARS = 64 << 10
MAX_GUIDED_CHOICES = 1024
MAX_TEMPLATE_KWARGS_BYTES = 16 << 10
MAX_TEMPLATE_KWARGS_DEPTH = 8
MAX_NAME_CHARS = 256
MAX_DETOKENIZE_IDS = 1 << 17
MAX_REQUEST_ID_CHARS = 128
INT64_MAX = 2**63 - 1


@dataclass(frozen=True)
class Number:
    """A number from `low` to `high`, both included unless `low_open`."""

    low: float
    high: float
    integer: bool = False
    low_open: bool = False

    def allows(self, value: float) -> bool:
        if isinstance(value, float):
            if not math.isfinite(value) or (self.integer and not value.is_integer()):
                return False
            if self.integer:  # compare as integers: 2.0**63 must not round into range
                value = int(value)
        return (value > self.low if self.low_open else value >= self.low) and value <= self.high

    def describe(self) -> str:
        kind = "an integer" if self.integer else "a number"
        if self.low_open:
            return f"{kind} above {self.low:g} and at most {self.high:g}"
        high = str(int(self.high)) if self.integer else f"{self.high:g}"
        low = str(int(self.low)) if self.integer else f"{self.low:g}"
        return f"{kind} from {low} to {high}"


NUMBERS: Mapping[str, Number] = {
    "temperature": Number(0, 2),
    "top_p": Number(0, 1, low_open=True),
    "min_p": Number(0, 1),
    "top_k": Number(0, 1 << 20, integer=True),
    "presence_penalty": Number(-2, 2),
    "frequency_penalty": Number(-2, 2),
    "repetition_penalty": Number(0.01, 10),
    "seed": Number(-(2**63), INT64_MAX, integer=True),
    "n": Number(1, 16, integer=True),
    "best_of": Number(1, 16, integer=True),
    "logprobs": Number(0, 20, integer=True),
    "top_logprobs": Number(0, 20, integer=True),
    "completions_logprobs": Number(0, 5, integer=True),
    "min_tokens": Number(0, 1 << 20, integer=True),
    "prompt_logprobs": Number(0, 20, integer=True),
    "max_tokens": Number(0, 1 << 20, integer=True),  # 0 is for routes where a prompt alone has an answer
    "max_completion_tokens": Number(1, 1 << 20, integer=True),
    "logit_bias": Number(-100, 100),
    "dimensions": Number(1, 1 << 20, integer=True),
}

# Log-probabilities of a prompt are all held until its first output: tokens x (alternatives + 1).
MAX_PROMPT_LOGPROBS = 1 << 18

MAX_STOPS = 16
MAX_STOP_CHARS = 256
MAX_STOP_TOKEN_IDS = 128
MAX_LOGIT_BIAS = 1024
# Any grammar; the longest are made of many tools.
MAX_GRAMMAR_BYTES = 128 << 10
MAX_SCHEMA_BYTES = 64 << 10
MAX_SCHEMA_DEPTH = 32
# Between the parts of JSON: a space, or a line break and indentation. Where blank lines are allowed, small
# models write nothing else.
JSON_WHITESPACE = r"(\x20|\n[\x20\t]{0,32})"
# Kinds of grammar, in the words of a message.
GRAMMAR_KINDS: Mapping[str, str] = {"json_schema": "JSON schema", "regex": "regex", "lark": "Lark grammar"}


_short = reprlib.Repr()
_short.maxstring = _short.maxother = _short.maxlong = 60


def show(value: object) -> str:
    """A client's value as it may be repeated in an error: short, on one line, printable."""
    text = _short.repr(value)  # however large the value, the work is small
    return text if len(text) <= 60 else text[:57] + "..."


def deeper_than(value: object, levels: int) -> bool:
    """Whether objects and lists are nested in more than so many levels; `[]` is one level, `1` none."""
    nested = [value] if isinstance(value, (dict, list)) else []
    for _ in range(levels):  # `nested` holds the containers of one level, the outermost first
        nested = [
            child
            for item in nested
            for child in (item.values() if isinstance(item, dict) else item)
            if isinstance(child, (dict, list))
        ]
        if not nested:
            break
    return bool(nested)


def number(field: str, value: object, *, param: str | None = None) -> float:
    """Checks a numeric field against its row. Booleans are not numbers."""
    row = NUMBERS[field]
    name = param or field
    if isinstance(value, (int, float)) and not isinstance(value, bool) and row.allows(value):
        return int(value) if row.integer else float(value)
    raise InvalidRequest(f"{name} must be {row.describe()}, not {show(value)}", param=name)


def integer(field: str, value: object, *, param: str | None = None) -> int:
    """`number` for the rows that are integers."""
    return int(number(field, value, param=param))


def boolean(field: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InvalidRequest(f"{field} must be true or false, not {show(value)}", param=field)
    return value


def text(field: str, value: object, *, max_chars: int | None = None) -> str:
    """A string that can be encoded as UTF-8: lone surrogates cannot."""
    if not isinstance(value, str):
        raise InvalidRequest(f"{field} must be a string, not {show(value)}", param=field)
    if max_chars is not None and len(value) > max_chars:
        raise InvalidRequest(
            f"{field} must have at most {max_chars} characters, not {len(value)}", param=field
        )
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise InvalidRequest(f"{field} holds a lone surrogate, which is not text", param=field) from None
    return value


def stops(value: object) -> tuple[str, ...]:
    """`stop`: a string or a list of strings, none of them empty."""
    items: list[object] = list(value) if isinstance(value, (list, tuple)) else [value]
    if len(items) > MAX_STOPS:
        raise InvalidRequest(f"stop must have at most {MAX_STOPS} strings, not {len(items)}", param="stop")
    found = tuple(text("stop", item, max_chars=MAX_STOP_CHARS) for item in items)
    if "" in found:
        raise InvalidRequest("stop must not hold an empty string", param="stop")
    return tuple(dict.fromkeys(found))


def token_ids(field: str, value: object, *, max_items: int) -> tuple[int, ...]:
    """A list of token ids, not yet held against a vocabulary."""
    if not isinstance(value, (list, tuple)):
        raise InvalidRequest(f"{field} must be a list of token ids, not {show(value)}", param=field)
    if len(value) > max_items:
        raise InvalidRequest(f"{field} must have at most {max_items} items, not {len(value)}", param=field)
    for item in value:
        if not isinstance(item, int) or isinstance(item, bool) or not 0 <= item <= INT64_MAX:
            raise InvalidRequest(f"{field} must hold token ids, not {show(item)}", param=field)
    return tuple(value)


def logit_bias(value: object) -> dict[int, float]:
    """`logit_bias`: token ids (JSON keys are strings) to values from -100 to 100."""
    if not isinstance(value, dict):
        raise InvalidRequest(f"logit_bias must be an object, not {show(value)}", param="logit_bias")
    if len(value) > MAX_LOGIT_BIAS:
        raise InvalidRequest(
            f"logit_bias must have at most {MAX_LOGIT_BIAS} entries, not {len(value)}", param="logit_bias"
        )
    result: dict[int, float] = {}
    for key, bias in value.items():
        token = str(key)
        if not (token.isascii() and token.isdecimal()) or len(token) > 10:
            raise InvalidRequest(f"logit_bias keys must be token ids, not {show(key)}", param="logit_bias")
        result[int(token)] = number("logit_bias", bias)
    return result


def in_vocabulary(field: str, ids: Collection[int], vocab_size: int) -> None:
    """Refuses ids outside the vocabulary."""
    if ids and (min(ids) < 0 or max(ids) >= vocab_size):
        token = next(token for token in ids if not 0 <= token < vocab_size)
        raise InvalidRequest(
            f"{field} holds token id {token}; this model's ids are 0 to {vocab_size - 1}", param=field
        )


def grammar(value: Grammar) -> None:
    """A grammar of a known kind, of bounded size and, where it is a JSON schema, of bounded depth."""
    what = GRAMMAR_KINDS.get(value.kind)
    if what is None:
        known = ", ".join(GRAMMAR_KINDS)
        raise InvalidRequest(f"a grammar's kind must be one of {known}, not {show(value.kind)}")
    size = len(text(f"the {what}", value.source, max_chars=MAX_GRAMMAR_BYTES).encode())
    if size > MAX_GRAMMAR_BYTES:
        raise InvalidRequest(f"the {what} must have at most {MAX_GRAMMAR_BYTES} bytes, not {size}")
    if value.kind == "json_schema":
        _schema(value.source)


def _schema(source: str) -> None:
    try:
        schema = msgspec.json.decode(source)
    except (msgspec.DecodeError, RecursionError) as error:
        raise InvalidRequest(f"the JSON schema is not valid JSON: {error}", code="invalid_grammar") from None
    if not isinstance(schema, (dict, bool)):
        raise InvalidRequest(f"a JSON schema must be an object, not {show(schema)}", code="invalid_grammar")
    if deeper_than(schema, MAX_SCHEMA_DEPTH):
        raise InvalidRequest(
            f"the JSON schema nests deeper than {MAX_SCHEMA_DEPTH} levels", code="invalid_grammar"
        )


def sampling(params: SamplingParams, vocab_size: int) -> None:
    """Holds finished sampling parameters against the whole table, whoever built them.

    Values must have their final types: what a dialect would still convert is refused here.
    """
    if isinstance(params.stop, str):
        raise InvalidRequest(f"stop must be a tuple of strings, not {show(params.stop)}", param="stop")
    whole = (params.top_k, params.n, params.min_tokens, params.seed, params.logprobs, params.max_tokens)
    for value in (*whole, params.prompt_logprobs, *params.logit_bias):
        if value is not None and type(value) is not int:
            raise InvalidRequest(f"counts, seeds and token ids must be integers, not {show(value)}")
    for field in (
        "temperature",
        "top_p",
        "min_p",
        "top_k",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "n",
        "min_tokens",
    ):
        number(field, getattr(params, field))
    for field in ("seed", "logprobs", "max_tokens", "prompt_logprobs"):
        value = getattr(params, field)
        if value is not None:
            number(field, value)
    stops(params.stop)
    token_ids("stop_token_ids", params.stop_token_ids, max_items=MAX_STOP_TOKEN_IDS)
    logit_bias(params.logit_bias)
    in_vocabulary("stop_token_ids", params.stop_token_ids, vocab_size)
    in_vocabulary("logit_bias", params.logit_bias, vocab_size)
    if params.max_tokens is not None and params.min_tokens > params.max_tokens:
        raise InvalidRequest(
            f"min_tokens must be at most max_tokens ({params.max_tokens}), not {params.min_tokens}",
            param="min_tokens",
        )


def reported_logprobs(tokens: int, alternatives: int | None, *, param: str = "prompt_logprobs") -> None:
    """How many log-probabilities of prompts one request may ask for."""
    if alternatives is not None and tokens * (alternatives + 1) > MAX_PROMPT_LOGPROBS:
        raise InvalidRequest(
            "log-probabilities of prompts (tokens times one more than the alternatives) must be at most "
            f"{MAX_PROMPT_LOGPROBS}, not {tokens} x {alternatives + 1}",
            param=param,
        )


def prompt(ids: Sequence[int], vocab_size: int) -> None:
    """A prompt has at least one token, all of them in the vocabulary."""
    if not ids:
        raise InvalidRequest("the prompt is empty: it must have at least one token", param="prompt")
    if set(map(type, ids)) != {int}:
        raise InvalidRequest("the prompt must be token ids, all of them integers", param="prompt")
    in_vocabulary("prompt", ids, vocab_size)
