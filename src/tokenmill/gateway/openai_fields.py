"""Which request fields each OpenAI route takes. The set is closed: anything else is refused by name.

A field is implemented; or it is an accepted no-op, for values that do not change the answer; or it is a
400 `unsupported_parameter`. Nobody gets an answer that silently ignored what they asked for.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import msgspec

from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest, UnsupportedParameter
from tokenmill.gateway.structured import STRUCTURED_FIELDS


@dataclass(frozen=True)
class NoOp:
    """A field that changes nothing here.

    Attributes:
        allowed: the values in words; `schema` is the same as JSON Schema.
        typed: a refused value is of the wrong type, not unsupported.
    """

    accepts: Callable[[object], bool]
    allowed: str
    schema: Mapping[str, object]
    typed: bool = False


def only(*values: object) -> NoOp:
    """Accepted for these values alone: they are what the server does anyway."""
    allowed = " or ".join(msgspec.json.encode(value).decode() for value in values)
    return NoOp(lambda given: any(_same(given, value) for value in values), allowed, {"enum": list(values)})


def _same(given: object, value: object) -> bool:
    return isinstance(given, bool) == isinstance(value, bool) and given == value


def _is_metadata(value: object) -> bool:
    """At most 16 pairs of strings, as the API defines it."""
    return (
        isinstance(value, dict)
        and len(value) <= 16
        and all(isinstance(item, str) and len(item) <= 512 and len(key) <= 64 for key, item in value.items())
    )


STRING = NoOp(lambda value: isinstance(value, str), "a string", {"type": "string"}, typed=True)
BOOLEAN = NoOp(lambda value: isinstance(value, bool), "true or false", {"type": "boolean"}, typed=True)
OBJECT = NoOp(lambda value: isinstance(value, dict), "an object", {"type": "object"}, typed=True)
METADATA = NoOp(
    _is_metadata,
    "an object of at most 16 strings",
    {
        "type": "object",
        "maxProperties": 16,
        "propertyNames": {"maxLength": 64},
        "additionalProperties": {"type": "string", "maxLength": 512},
    },
    typed=True,
)


@dataclass(frozen=True)
class Fields:
    """A route's fields. `refused` are known to the API and not implemented here."""

    implemented: frozenset[str]
    no_ops: Mapping[str, NoOp]
    refused: frozenset[str] = frozenset()

    def check(self, body: Mapping[str, object]) -> None:
        """Raises UnsupportedParameter (or InvalidRequest) for the first field that is not taken."""
        for name, value in body.items():
            if name in self.implemented:
                continue
            no_op = self.no_ops.get(name)
            if no_op is None:
                raise self._unknown(name)
            if not no_op.accepts(value):
                if no_op.typed:
                    raise InvalidRequest(f"{name} must be {no_op.allowed}, not {show(value)}", param=name)
                raise UnsupportedParameter(
                    f"{name} is not supported; only {no_op.allowed} is accepted, not {show(value)}",
                    param=name,
                )

    def _unknown(self, name: str) -> UnsupportedParameter:
        if name in self.refused:
            return UnsupportedParameter(f"{name} is not supported by this server", param=name)
        near = difflib.get_close_matches(name[:64], [*self.implemented, *self.no_ops], n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        return UnsupportedParameter(f"unknown parameter {show(name)}{hint}", param=name[:64])


_SHARED = STRUCTURED_FIELDS | frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "presence_penalty",
        "frequency_penalty",
        "repetition_penalty",
        "logit_bias",
        "seed",
        "n",
        "stop",
        "stop_token_ids",
        "min_tokens",
        "max_tokens",
        "max_completion_tokens",
        "ignore_eos",
        "logprobs",
        "stream",
        "stream_options",
        "model",
    }
)

# Who asks, hints for caches and billing, and vLLM's switches at the value that is the only behaviour here.
_NO_OPS: Mapping[str, NoOp] = {
    "user": STRING,
    "metadata": METADATA,
    "store": only(False),
    "service_tier": only("auto", "default"),
    "safety_identifier": STRING,
    "prompt_cache_key": STRING,
    "prompt_cache_retention": STRING,
    "prompt_cache_options": OBJECT,
    "length_penalty": only(1),
    "use_beam_search": only(False),
    "include_stop_str_in_output": only(False),
    "skip_special_tokens": only(True),
    "spaces_between_special_tokens": only(True),
    "return_tokens_as_token_ids": only(False),
    "return_token_ids": only(False),
    "bad_words": only([]),
    "priority": only(0),
}

_REFUSED = frozenset(
    {
        "allowed_token_ids",
        "cache_salt",
        "logits_processors",
        "truncate_prompt_tokens",
    }
)

CHAT = Fields(
    implemented=_SHARED
    | {
        "messages",
        "prompt_logprobs",
        "top_logprobs",
        "tools",
        "tool_choice",
        "parallel_tool_calls",
        "chat_template_kwargs",
    },
    no_ops={
        **_NO_OPS,
        "best_of": only(1),
        "functions": only([]),
        "function_call": only("none", "auto"),
        "modalities": only(["text"]),
        "reasoning_effort": only("none"),
        "verbosity": only("medium"),
        "prediction": OBJECT,  # makes answers faster, never different
        "echo": only(False),
        "add_generation_prompt": only(True),
        "add_special_tokens": only(False),
        "continue_final_message": only(False),
        "documents": only([]),
    },
    refused=_REFUSED
    | {
        "audio",
        "chat_template",
        "moderation",
        "prompt",
        "suffix",
        "web_search_options",
    },
)

COMPLETIONS = Fields(
    implemented=_SHARED | {"prompt", "echo", "best_of", "prompt_logprobs"},
    no_ops={
        **_NO_OPS,
        "suffix": only(""),
        "add_special_tokens": only(True),
    },
    refused=_REFUSED | {"messages", "prompt_embeds", "tools", "top_logprobs"},
)

EMBEDDINGS = Fields(
    implemented=frozenset({"model", "input", "encoding_format", "dimensions"}),
    no_ops={
        "user": STRING,
        "priority": only(0),
        "add_special_tokens": only(True),
        "normalize": only(True),
        "use_activation": only(True),
    },
    refused=frozenset({"messages", "truncate_prompt_tokens", "embed_dtype", "endianness"}),
)

TOKENIZE = Fields(
    implemented=frozenset(
        {
            "model",
            "prompt",
            "messages",
            "tools",
            "chat_template_kwargs",
            "add_special_tokens",
            "add_generation_prompt",
            "return_token_strs",
        }
    ),
    no_ops={
        "user": STRING,
        "continue_final_message": only(False),
    },
    refused=frozenset({"chat_template", "mm_processor_kwargs"}),
)

DETOKENIZE = Fields(implemented=frozenset({"model", "tokens"}), no_ops={"user": STRING})
