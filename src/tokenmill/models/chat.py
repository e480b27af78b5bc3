"""A model's chat template: messages to the one text the model reads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import jinja2

from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import InvalidRequest, ModelFileError
from tokenmill.models.chat_limits import BUDGET, Budget, TemplateLimit
from tokenmill.models.chat_messages import Content, plain, prepared
from tokenmill.models.chat_sandbox import ChatSandbox
from tokenmill.models.folder_files import read_json, read_text
from tokenmill.models.tokenizer_files import TokenizerFiles

MAX_TEMPLATE_CHARS = 256 << 10
MAX_REASON_CHARS = 300

_RESERVED = frozenset({"messages", "tools", "add_generation_prompt", "bos_token", "eos_token"})

_PROBE_NAME = "tokenmill_probe"
_PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": _PROBE_NAME,
        "description": "Says hello.",
        "parameters": {
            "type": "object",
            "properties": {"to": {"type": "string", "description": "To whom."}},
            "required": ["to"],
        },
    },
}


class ChatTemplate:
    """Renders messages. The template writes BOS itself: encode its text with `add_special=False`.

    One instance serves any number of threads.

    Attributes:
        source: the template as written; where there is another one for tools, that follows.
        reads_tools: whether tools given to `render` reach the text.
    """

    source: Final[str]
    reads_tools: Final[bool]

    def __init__(
        self,
        source: str,
        *,
        tool_source: str | None = None,
        bos_token: str = "",
        eos_token: str = "",
        clock: Clock | None = None,
    ) -> None:
        """Compiles the template; `tool_source` is used instead where a request has tools.

        Raises:
            ModelFileError: a template is too long or is not valid Jinja.
        """
        self._clock = clock or SystemClock()
        sandbox = ChatSandbox({"raise_exception": _refuse, "strftime_now": self._strftime_now})
        self._template = _compile(sandbox, source)
        self._tool_template = _compile(sandbox, tool_source) if tool_source is not None else self._template
        self._fixed = {"bos_token": bos_token, "eos_token": eos_token}
        self._reads = self._content_read()
        self.source = source if tool_source is None else f"{source}\n{tool_source}"
        self.reads_tools = self._shows_tools()

    def render(
        self,
        messages: Sequence[Mapping[str, object]],
        *,
        tools: Sequence[Mapping[str, object]] | None = None,
        add_generation_prompt: bool = True,
        extra: Mapping[str, object] | None = None,
    ) -> str:
        """The text of a conversation, as transformers renders it.

        `content` may be a string, null or a list of text parts; `chat_messages.prepared` says what of it the
        template gets. `extra` are further variables for the template.

        Raises:
            InvalidRequest: the messages do not fit the template, or it broke on them.
        """
        taken = _RESERVED.intersection(extra or ())
        if taken:
            raise InvalidRequest(f"template variable {min(taken)!r} cannot be set from outside")
        variables = {str(key): plain(value, str(key)) for key, value in (extra or {}).items()}
        return _run(
            self._template if tools is None else self._tool_template,
            {"documents": None}
            | variables
            | {
                "messages": [
                    prepared(message, f"messages[{i}]", self._reads) for i, message in enumerate(messages)
                ],
                "tools": None if tools is None else plain(list(tools), "tools"),
                "add_generation_prompt": add_generation_prompt,
                **self._fixed,
            },
        )

    def _content_read(self) -> Content:
        """Whether what a message says reaches the text as a string, and whether as a list of parts."""
        mark = "tokenmill mark"  # a template that shows it writes parts down raw
        said = ("tokenmill probe one", "tokenmill probe two")
        parts = [{"type": "text", "text": text, "mark": mark} for text in said]

        def shown(content: object) -> str:
            variables = {
                "messages": [{"role": "user", "content": content}],
                "tools": None,
                "documents": None,
                "add_generation_prompt": True,
                **self._fixed,
            }
            try:
                return _run(self._template, variables)
            except InvalidRequest:
                return ""

        out = shown(parts)
        if not all(text in out for text in said) or mark in out:
            return Content.TEXT
        return Content.BOTH if said[0] in shown(said[0]) else Content.PARTS

    def _shows_tools(self) -> bool:
        """Whether the name of a tool appears in the text, if need be only beside a system prompt."""
        user = {"role": "user", "content": "hello"}
        for messages in ([user], [{"role": "system", "content": "hello"}, user]):
            with contextlib.suppress(InvalidRequest):
                if _PROBE_NAME in self.render(messages, tools=[_PROBE_TOOL]):
                    return True
        return False

    def _strftime_now(self, pattern: str) -> str:
        # A width in the pattern would make the text as long as the template likes. `-` leaves out padding.
        if len(pattern) > 100 or re.search(r"%(?!-?[A-Za-z]|%)", pattern):
            raise TemplateLimit("it asks for a date in a form that is not supported")
        return datetime.fromtimestamp(self._clock.wall()).strftime(pattern)


def load_chat_template(files: TokenizerFiles, bos_token: str, eos_token: str) -> ChatTemplate | None:
    """The template a model comes with; None when it has none.

    Raises:
        ModelFileError: it cannot be read or is not valid Jinja.
    """
    if files.gguf is not None:
        named = {
            "default": files.gguf.get("tokenizer.chat_template"),
            "tool_use": files.gguf.get("tokenizer.chat_template.tool_use"),
        }
    elif files.folder is not None:
        text = read_text(files.folder, "chat_template.jinja", 4 * MAX_TEMPLATE_CHARS)
        stored = text or read_json(files.folder, "tokenizer_config.json").get("chat_template")
        named = _named(stored or read_json(files.folder, "chat_template.json").get("chat_template"))
    else:
        named = {}
    source, tool_source = named.get("default"), named.get("tool_use")
    if source is None:
        return None
    if not isinstance(source, str) or not (tool_source is None or isinstance(tool_source, str)):
        raise ModelFileError("the model's chat template must be a string")
    return ChatTemplate(source, tool_source=tool_source, bos_token=bos_token, eos_token=eos_token)


def _named(stored: object) -> dict[str, object]:
    """Templates by name: a lone one is the default, a list names each."""
    if not isinstance(stored, list):
        return {"default": stored}
    entries = [entry for entry in stored if isinstance(entry, dict)]
    return {str(entry.get("name")): entry.get("template") for entry in entries}


def _compile(sandbox: ChatSandbox, source: str) -> jinja2.Template:
    if len(source) > MAX_TEMPLATE_CHARS:
        raise ModelFileError(
            f"the model's chat template has {len(source)} characters; {MAX_TEMPLATE_CHARS} are allowed"
        )
    try:
        return sandbox.from_string(source)
    except jinja2.TemplateSyntaxError as error:
        reason = f"line {error.lineno}: {error.message}"
    except Exception as error:  # a hostile template can break the compiler in many ways, none of them ours
        reason = _reason(error)
    raise ModelFileError(f"the model's chat template is not valid: {reason}"[: MAX_REASON_CHARS + 50])


def _run(template: jinja2.Template, variables: Mapping[str, object]) -> str:
    token = BUDGET.set(Budget())
    try:
        return "".join(template.generate(variables))
    except _Refused as error:
        reason = f"the model's chat template refuses these messages: {_reason(error)}"
    except Exception as error:  # whatever a template runs into is a fault of template and messages
        reason = f"the model's chat template failed: {_reason(error)}"
    finally:
        BUDGET.reset(token)
    raise InvalidRequest(reason, param="messages")


class _Refused(jinja2.TemplateError):
    """The template called raise_exception."""


def _refuse(message: object = "") -> str:
    raise _Refused(str(message) if isinstance(message, str) else "")


def _reason(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "it nests too deep or calls itself too often"
    text = " ".join(str(error).split()) or "without saying why"
    return text if len(text) <= MAX_REASON_CHARS else text[: MAX_REASON_CHARS - 3] + "..."
