"""Templates in the manner of the common families render as transformers renders them, byte for byte.

The templates in support/chat_templates are written for these tests: they use of Jinja what the families' own
use, in shorter words.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jinja2
import pytest
from tokenizers import Tokenizer, models

from tokenmill.core.errors import InvalidRequest
from tokenmill.models.chat import ChatTemplate

FOLDER = Path(__file__).parents[1] / "support" / "chat_templates"
FAMILIES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.jinja"))}

Message = dict[str, Any]

WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "Wetter für <einen> Ort & 'Tag' 😀",
        "parameters": {
            "type": "object",
            "properties": {
                "place": {"type": "string", "description": "Ort"},
                "unit": {"type": "string", "enum": ["c", "f"]},
                "days": {"type": "array", "items": {"type": "number"}},
                "limit": {"type": ["integer", "null"], "default": 1.0},
            },
            "required": ["place"],
        },
    },
}
NOTHING = {"type": "function", "function": {"name": "noop", "description": "", "parameters": {}}}


def _call(name: str, arguments: dict[str, Any], number: int = 1) -> dict[str, Any]:
    return {"id": f"call0000{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _says(role: str, content: Any, **more: Any) -> Message:
    return {"role": role, "content": content, **more}


SYSTEM, USER = _says("system", "Be brief. "), _says("user", " What <b>now</b> & 'then'?\n")
ASKS = _says(
    "assistant", None, tool_calls=[_call("weather", {"place": "Ōsaka", "days": [1, 2.5], "x": None})]
)
ANSWERS = _says("tool", '{"t": 20.5, "ö": "ü"}', tool_call_id="call00001", name="weather")
BOTH = [_call("weather", {"place": "A"}), _call("noop", {}, 2)]
PARTS = [{"type": "text", "text": " one "}, {"type": "text", "text": "two\n"}]

CONVERSATIONS: dict[str, list[Message]] = {
    "user": [USER],
    "system": [SYSTEM, USER],
    "system with a flag": [_says("system", "Short. /no_think"), USER],
    "turns": [SYSTEM, USER, _says("assistant", " fine\n"), _says("user", "naïve 😀 中文\u2028")],
    "ends with an answer": [USER, _says("assistant", "fine")],
    "an answer after blank lines": [USER, _says("assistant", "\n\nfine"), USER],
    "thoughts in the text": [USER, _says("assistant", "<think>\nhm\n</think>\n\nso"), USER],
    "thoughts in the last answer": [USER, _says("assistant", "<think>\nhm\n</think>\n\nso")],
    "thoughts apart": [USER, _says("assistant", "so", reasoning_content="hm\n"), USER],
    "thoughts by another name": [USER, _says("assistant", "so", reasoning="hm")],
    "a call": [USER, ASKS],
    "a call and its answer": [SYSTEM, USER, ASKS, ANSWERS],
    "a call, its answer, words": [USER, ASKS, ANSWERS, _says("assistant", "20.5°"), USER],
    "a call with words": [USER, {**ASKS, "content": "I look."}, ANSWERS],
    "a call without content": [USER, {k: v for k, v in ASKS.items() if k != "content"}, ANSWERS],
    "a call with thoughts": [USER, {**ASKS, "reasoning_content": "hm"}, ANSWERS],
    "two calls": [USER, {**ASKS, "tool_calls": BOTH}, ANSWERS, {**ANSWERS, "tool_call_id": "call00002"}],
    "an id too short": [USER, {**ASKS, "tool_calls": [{**BOTH[0], "id": "1"}]}, ANSWERS],
    "no calls after all": [USER, _says("assistant", "hm", tool_calls=None), USER],
    "empty calls": [USER, _says("assistant", "hm", tool_calls=[]), USER],
    "empty content": [_says("system", ""), _says("user", ""), _says("assistant", ""), USER],
    "null content": [USER, _says("assistant", None), USER],
    "developer": [_says("developer", "Be brief."), USER],
    "two users": [USER, USER],
    "system last": [USER, SYSTEM],
    "assistant first": [_says("assistant", "hello"), USER],
    "parts": [_says("system", PARTS), _says("user", PARTS), _says("assistant", PARTS), USER],
    "no parts": [_says("user", [])],
    "special spellings": [_says("user", "<|im_end|>\n{{ x }}{% if %}</s>[INST]<think>")],
    "tools in a message": [_says("system", "Use them.", tools=json.dumps([WEATHER])), USER],
    "many": [USER if n % 2 == 0 else _says("assistant", f"{n}") for n in range(81)],
}

EXTRAS: list[dict[str, Any]] = [
    {},
    {"enable_thinking": False, "tools_in_user_message": False, "date_string": "1 Jan 2030"},
    {"builtin_tools": ["weather", "code_interpreter"], "reasoning_effort": "high", "documents": []},
]

# Families that read content as a list of parts; to the others it is joined by newlines before.
READ_PARTS = {"gemma3", "mistral7"}


@pytest.fixture(scope="module")
def reference() -> Any:
    from transformers import PreTrainedTokenizerFast

    backend = Tokenizer(models.BPE({"<s>": 0, "</s>": 1}, []))
    return PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>", eos_token="</s>")


def _expected(
    reference: Any, family: str, messages: list[Message], tools: Any, prompt: bool, extra: dict[str, Any]
) -> str | None:
    """What transformers renders; None where the template refuses the messages or breaks on them."""
    messages = copy.deepcopy(messages)
    for message in messages:
        if isinstance(message.get("content"), list) and family not in READ_PARTS:
            message["content"] = "\n".join(part["text"] for part in message["content"])
    try:
        text = reference.apply_chat_template(
            messages,
            tools=tools,
            chat_template=FAMILIES[family],
            add_generation_prompt=prompt,
            tokenize=False,
            **extra,
        )
    except (jinja2.TemplateError, TypeError, AttributeError, IndexError, KeyError):
        return None
    assert isinstance(text, str)
    return text


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("conversation", CONVERSATIONS)
def test_text_equals_transformers(reference: Any, family: str, conversation: str) -> None:
    template = ChatTemplate(FAMILIES[family], bos_token="<s>", eos_token="</s>")
    messages = CONVERSATIONS[conversation]
    for tools in (None, [], [WEATHER], [WEATHER, NOTHING]):
        for prompt in (True, False):
            for extra in EXTRAS:
                expected = _expected(reference, family, messages, tools, prompt, extra)
                try:
                    text = template.render(messages, tools=tools, add_generation_prompt=prompt, extra=extra)
                except InvalidRequest:
                    assert expected is None, (tools, prompt, extra)
                else:
                    assert text == expected, (tools, prompt, extra)


@pytest.mark.parametrize("family", FAMILIES)
def test_most_conversations_can_be_rendered(reference: Any, family: str) -> None:
    """So that equality does not rest on refusals alone."""
    rendered = [_expected(reference, family, m, None, True, {}) for m in CONVERSATIONS.values()]
    assert sum(text is not None for text in rendered) >= 12


@pytest.mark.parametrize("family", FAMILIES)
def test_arguments_as_json_text_are_arguments(family: str) -> None:
    template = ChatTemplate(FAMILIES[family], bos_token="<s>", eos_token="</s>")
    as_text = copy.deepcopy(CONVERSATIONS["a call"])
    function = as_text[1]["tool_calls"][0]["function"]
    function["arguments"] = json.dumps(function["arguments"])

    def outcome(messages: list[Message]) -> str:
        try:
            return template.render(messages, tools=[WEATHER])
        except InvalidRequest as refusal:
            return str(refusal)

    assert outcome(as_text) == outcome(CONVERSATIONS["a call"])


def test_which_families_read_tools() -> None:
    reads = {family for family, source in FAMILIES.items() if ChatTemplate(source).reads_tools}
    assert reads == {"qwen25", "qwen3", "llama31", "mistral3", "mistral7", "smollm3", "harmony"}
