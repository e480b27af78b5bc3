"""A conversation to the token ids the model reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from tokenmill.core import bounds
from tokenmill.core.bounds import show
from tokenmill.core.errors import InvalidRequest
from tokenmill.gateway.messages import Message
from tokenmill.gateway.sampling import encode
from tokenmill.gateway.served import MessageTemplate, ServedModel
from tokenmill.gateway.tools.declared import Tool
from tokenmill.gateway.tools.families import Family, family_of


@dataclass(frozen=True)
class Conversation:
    """What a chat template is asked to write.

    Attributes:
        tools: functions to describe.
        variables: further variables for the template.
    """

    messages: Sequence[Message]
    tools: Sequence[Tool] = ()
    variables: Mapping[str, object] = field(default_factory=dict)
    add_generation_prompt: bool = True


@dataclass(frozen=True)
class ChatPrompt:
    """The text a template made, its token ids, and the template's way of calling tools."""

    text: str
    ids: Sequence[int]
    family: Family


def template_of(model: ServedModel) -> MessageTemplate:
    """The model's chat template. Raises InvalidRequest when it has none."""
    if model.chat_template is None:
        raise InvalidRequest(
            f"{model.name} has no chat template; use /v1/completions",
            param="messages",
            code="no_chat_template",
        )
    return model.chat_template


def chat_prompt(model: ServedModel, conversation: Conversation) -> ChatPrompt:
    """Renders and tokenizes. The template writes BOS itself where the model wants it."""
    template = template_of(model)
    family = family_of(template)  # the first time this renders the template
    messages, tools = family.prepare(conversation.messages, conversation.tools)
    text = template.render(
        messages,
        tools=tools,
        add_generation_prompt=conversation.add_generation_prompt,
        extra=conversation.variables,
    )
    return ChatPrompt(text, encode(model, text, add_special=False), family)


def template_variables(body: Mapping[str, object]) -> Mapping[str, object]:
    """`chat_template_kwargs`: variables such as `enable_thinking`. Raises InvalidRequest."""
    field_name = "chat_template_kwargs"
    value = body.get(field_name, {})
    if not isinstance(value, dict):
        raise InvalidRequest(f"{field_name} must be an object, not {show(value)}", param=field_name)
    if len(msgspec.json.encode(value)) > bounds.MAX_TEMPLATE_KWARGS_BYTES:
        raise InvalidRequest(
            f"{field_name} must have at most {bounds.MAX_TEMPLATE_KWARGS_BYTES} bytes", param=field_name
        )
    if bounds.deeper_than(value, bounds.MAX_TEMPLATE_KWARGS_DEPTH):
        raise InvalidRequest(
            f"{field_name} must be at most {bounds.MAX_TEMPLATE_KWARGS_DEPTH} levels deep", param=field_name
        )
    return value
