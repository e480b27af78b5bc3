"""Which way of calling tools a model has, read from its chat template; the model's name says nothing."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from tokenmill.core.errors import InvalidRequest
from tokenmill.gateway.served import MessageTemplate
from tokenmill.gateway.tools import generic, hermes, llama3, mistral, phi4
from tokenmill.gateway.tools.declared import Offer, Tool
from tokenmill.gateway.tools.syntax import Syntax

Messages = Sequence[Mapping[str, object]]
Described = Sequence[Mapping[str, object]]


@dataclass(frozen=True)
class Family:
    """A way of telling tools to a model and of reading its calls.

    Attributes:
        described_by: who puts the tools before the model: the template from its variable `tools`, the
            system message's member of that name, or text of ours.
        short_ids: the template accepts only ids of calls with nine letters and digits.
        several_calls: "never" where the template refuses them; "if asked" where the model has not learned to
            make several and may repeat itself without end.
    """

    syntax: Syntax
    described_by: Literal["template", "system", "text"] = "template"
    short_ids: bool = False
    several_calls: Literal["never", "if asked", "usual"] = "usual"

    def limit(self, offer: Offer) -> Offer:
        """The offer with the choice between one call and several made."""
        asked = offer.parallel is True or (offer.parallel is None and self.several_calls == "usual")
        return replace(offer, parallel=asked and self.several_calls != "never")

    def prepare(self, messages: Messages, tools: Sequence[Tool]) -> tuple[Messages, Described | None]:
        """The messages for the template, and what it gets as its variable `tools`.

        That is None where there is nothing for it to describe: templates take an empty list for tools.
        """
        if self.described_by == "text":
            return generic.explained(messages, tools), None
        if self.short_ids:
            messages = mistral.with_short_ids(messages)
        if self.described_by == "system":
            return phi4.with_tools_in_system(messages, tools), None
        return messages, [tool.described() for tool in tools] or None


GENERIC = Family(generic.SYNTAX, described_by="text", several_calls="if asked")
HERMES = Family(hermes.SYNTAX)
LLAMA3 = Family(llama3.SYNTAX)
MISTRAL_LISTED = Family(mistral.LISTED, short_ids=True)
MISTRAL_NAMED = Family(mistral.NAMED, short_ids=True)
PHI4 = Family(phi4.SYNTAX, described_by="system")


@functools.lru_cache(maxsize=16)
def family_of(template: MessageTemplate) -> Family:
    """A template's family, and whether the template takes several calls of one message."""
    family = choose_family(template.source, template.reads_tools)
    if not _takes_calls(template, family, 2) and _takes_calls(template, family, 1):
        return replace(family, several_calls="never")
    return family


def _takes_calls(template: MessageTemplate, family: Family, count: int) -> bool:
    call = {"id": "abcdefghi", "type": "function", "function": {"name": "probe", "arguments": "{}"}}
    talk: list[dict[str, object]] = [
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": "", "tool_calls": [call] * count},
        {"role": "tool", "content": "hello", "tool_call_id": "abcdefghi"},
    ]
    messages, tools = family.prepare(talk, [Tool("probe", "", {"type": "object"}, strict=False)])
    try:
        template.render(messages, tools=tools)
    except InvalidRequest:
        return False
    return True


def choose_family(template: str, reads_tools: bool) -> Family:
    """The family whose marks the template's text bears.

    A template that does not read tools, or whose calls have a form not known here, gets the generic way.
    """
    if "<|tool|>" in template and "message['tools']" in template.replace('"', "'"):
        return PHI4
    if not reads_tools:
        return GENERIC
    if mistral.NAMED.open in template:
        return MISTRAL_NAMED if "[ARGS]" in template else MISTRAL_LISTED
    if hermes.SYNTAX.open in template and "<function=" not in template:
        return HERMES
    if llama3.SYNTAX.open in template or '"parameters": dictionary' in template:
        return LLAMA3
    return GENERIC
