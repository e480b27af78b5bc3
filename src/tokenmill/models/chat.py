"""A model's chat template: messages to the one text the model reads."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

import jinja2
import msgspec

from tokenmill.core.bounds import show
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import InvalidRequest, ModelFileError
from tokenmill.models.chat_limits import BUDGET, MAX_NESTING, Budget, TemplateLimit
from tokenmill.models.chat_sandbox import ChatSandbox
from tokenmill.models.folder_tokenizer import read_json, read_text
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
        self._wants_parts = self._reads_parts_alone()
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
        """The text of a conversation.

        `content` may be a string, null (the empty string) or a list of text parts, which are joined with
        newlines unless the template reads parts itself. `extra` are further variables for the template.

        Raises:
            InvalidRequest: the messages do not fit the template, or it broke on them.
        """
        taken = _RESERVED.intersection(extra or ())
        if taken:
            raise InvalidRequest(f"template variable {min(taken)!r} cannot be set from outside")
        prepared = [
            _message(message, f"messages[{i}]", self._wants_parts) for i, message in enumerate(messages)
        ]
        variables = {str(key): _plain(value, str(key)) for key, value in (extra or {}).items()}
        variables |= {
            "messages": prepared,
            "tools": _plain(list(tools), "tools") if tools else None,
            "add_generation_prompt": add_generation_prompt,
            **self._fixed,
        }
        return _run(self._tool_template if tools else self._template, variables)

    def _reads_parts_alone(self) -> bool:
        """Whether the template loses content that is a string, but not content that is a list of parts."""
        probe = "tokenmill probe"

        def keeps(content: object) -> bool:
            try:
                messages = [{"role": "user", "content": content}]
                variables = {
                    "messages": messages,
                    "tools": None,
                    "add_generation_prompt": True,
                    **self._fixed,
                }
                return probe in _run(self._template, variables)
            except InvalidRequest:
                return False

        return not keeps(probe) and keeps([{"type": "text", "text": probe}])

    def _shows_tools(self) -> bool:
        """Whether the name of a tool appears in the text, if need be only beside a system prompt."""
        user = {"role": "user", "content": "hello"}
        for messages in ([user], [{"role": "system", "content": "hello"}, user]):
            with contextlib.suppress(InvalidRequest):
                if _PROBE_NAME in self.render(messages, tools=[_PROBE_TOOL]):
                    return True
        return False

    def _strftime_now(self, pattern: str) -> str:
        # A width in the pattern would make the text as long as the template likes.
        if len(pattern) > 100 or re.search(r"%[^A-Za-z%]", pattern):
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


def _message(message: Mapping[str, object], where: str, wants_parts: bool) -> dict[str, object]:
    """A message as templates expect it: content as text (or parts), tool arguments as objects."""
    if not isinstance(message, Mapping):
        raise InvalidRequest(f"{where} must be an object, not {show(message)}", param=where)
    result = {str(key): _plain(value, f"{where}.{key}") for key, value in message.items()}
    texts = _texts(result.get("content"), f"{where}.content")
    result["content"] = (
        [{"type": "text", "text": text} for text in texts] if wants_parts else "\n".join(texts)
    )
    calls = result.get("tool_calls")
    if isinstance(calls, list):
        result["tool_calls"] = [_tool_call(call) for call in calls]
    return result


def _texts(content: object, where: str) -> list[str]:
    """The texts of a message's content: one for a string, none for null, one a part for a list."""
    if content is None:
        return []
    if isinstance(content, str):
        return [content]
    if not isinstance(content, list):
        raise InvalidRequest(f"{where} must be a string or a list of parts, not {show(content)}", param=where)
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, dict) else None
        text = part.get(kind) if isinstance(part, dict) and kind in ("text", "refusal") else None
        if not isinstance(text, str):
            raise InvalidRequest(
                f'{where}[{number}] must be {{"type": "text", "text": "..."}}, not {show(part)}; '
                "this model reads only text",
                param=f"{where}[{number}]",
            )
        texts.append(text)
    return texts


def _tool_call(call: object) -> object:
    """OpenAI clients send arguments as JSON text; templates write them as an object."""
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(call, dict) or not isinstance(function, dict):
        return call
    arguments = function.get("arguments")
    if not isinstance(arguments, str):
        return call
    try:
        parsed = msgspec.json.decode(arguments)
    except (msgspec.DecodeError, RecursionError):
        return call
    return {**call, "function": {**function, "arguments": parsed}} if isinstance(parsed, dict) else call


def _plain(value: object, where: str, depth: int = 0) -> object:
    """A copy of dict, list, str, int, float, bool and None alone: a template meets nothing else."""
    if depth > MAX_NESTING:
        raise InvalidRequest(f"{where} is nested more than {MAX_NESTING} deep", param=where)
    if value is None or type(value) in (str, int, float, bool):
        return value
    if isinstance(value, Mapping):
        return {str(key): _plain(item, where, depth + 1) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item, where, depth + 1) for item in value]
    raise InvalidRequest(f"{where} holds {show(value)}, which is not JSON", param=where)
