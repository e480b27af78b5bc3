"""Chat templates: equal text with transformers, and nothing a hostile template can reach or use up."""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.core.clock import ManualClock
from tokenmill.core.errors import InvalidRequest, ModelFileError
from tokenmill.models import chat_limits
from tokenmill.models.chat import MAX_TEMPLATE_CHARS, ChatTemplate, load_chat_template
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer_files import TokenizerFiles

USER = [{"role": "user", "content": "hi"}]
TOOLS = [
    {
        "type": "function",
        "function": {"name": "f", "description": "<é> & 'x'", "parameters": {"a": [1, None]}},
    }
]

# Templates in the manner of well-known families: what they use of Jinja, not their wording.
FAMILIES = {
    "bos and strict roles": (
        "{{ bos_token }}{% for m in messages %}"
        "{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}"
        "{{ raise_exception('roles must alternate') }}{% endif %}{% if m['role'] == 'user' %}"
        "{{ '[INST] ' + m['content'].strip() + ' [/INST]' }}"
        "{% else %}{{ ' ' + m['content'] | trim + eos_token }}{% endif %}{% endfor %}"
    ),
    "namespace, slices, tests": (
        "{%- set ns = namespace(system='', last=0) -%}\n"
        "{%- if messages[0].role == 'system' -%}\n"
        "{%- set ns.system = messages[0].content -%}\n  {%- set rest = messages[1:] -%}\n"
        "{%- else -%}{%- set rest = messages -%}{%- endif -%}\n{{- ns.system ~ '|' ~ (rest | length) -}}\n"
        "{%- for m in rest -%}\n"
        "{%- if m.content is string and not loop.last -%}{%- set ns.last = loop.index -%}{%- endif -%}\n"
        "<|{{ m.role }}|>\n{{ m['content'].split('</think>')[-1].lstrip('\\n') }}\n{% endfor -%}\n"
        "{{ ns.last }}"
        "{% if add_generation_prompt is defined and add_generation_prompt %}<|assistant|>{% endif %}"
    ),
    "tools as JSON": (
        "{% if tools is not none %}{% for t in tools %}{{ t | tojson(indent=4) }}{{ t.function | tojson }}"
        "{% if not loop.last %}, {% endif %}{% endfor %}{% endif %}"
        "{% for m in messages %}{{ m.role | upper }}:{{ m.content }}"
        "{% for c in m.tool_calls or [] %}<call>{{ c.function.arguments | tojson }}{% endfor %}{% endfor %}"
    ),
    "macros and filters": (
        "{% macro show(name, value='-') %}{{ name | capitalize }}="
        "{{ value | replace('a', 'b') | indent(2) }};{% endmacro %}"
        "{% for m in messages if m.role != 'system' %}{{ show(m.role, m.content) }}"
        "{{ loop.previtem.role if loop.previtem is defined else 'none' }}"
        "{% if loop.index > 3 %}{% break %}{% endif %}{% endfor %}"
        "{{ messages | map(attribute='role') | join(',') }}"
        "{{ messages | selectattr('role', 'equalto', 'user') | list | length }}"
        "{{ {'a': 1, 'b': [1, 2]} | dictsort | first }}{{ range(3) | list | string }}"
    ),
    "generation": (
        "{% for m in messages %}{% if m.role == 'assistant' %}"
        "{% generation %}{{ m.content }}{% endgeneration %}{% else %}{{ m.content }}{% endif %}{% endfor %}"
    ),
    "trimmed blocks": "  {% if true %}\n    x\n  {% endif %}\n\n{# note #}\ny {{ 'a' }}\n",
}

CONVERSATIONS: list[list[dict[str, Any]]] = [
    [{"role": "user", "content": "Hello <b>you</b> & 'all'"}],
    [
        {"role": "user", "content": " a\nb "},
        {"role": "assistant", "content": "<think>x</think>\n\nfine "},
        {"role": "user", "content": "naïve 😀"},
    ],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("conversation", range(len(CONVERSATIONS)))
@pytest.mark.parametrize("tools", [None, TOOLS])
def test_text_equals_transformers(family: str, conversation: int, tools: list[dict[str, Any]] | None) -> None:
    from jinja2.exceptions import TemplateError
    from transformers.utils.chat_template_utils import render_jinja_template

    messages = CONVERSATIONS[conversation]
    template = ChatTemplate(FAMILIES[family], bos_token="<s>", eos_token="</s>")
    try:
        ((expected,), _) = render_jinja_template(
            [messages],
            tools=tools,
            chat_template=FAMILIES[family],
            add_generation_prompt=True,
            bos_token="<s>",
            eos_token="</s>",
        )
    except TemplateError:
        with pytest.raises(InvalidRequest, match="refuses these messages: roles must alternate"):
            template.render(messages, tools=tools)
    else:
        assert template.render(messages, tools=tools) == expected


@pytest.mark.parametrize("conversation", range(len(CONVERSATIONS)))
@pytest.mark.parametrize("prompt", [True, False])
def test_the_small_model_renders_as_with_transformers(
    small_model_path: Path, small_template: ChatTemplate, conversation: int, prompt: bool
) -> None:
    reference = _reference(small_model_path)
    messages = CONVERSATIONS[conversation]
    expected = reference.apply_chat_template(messages, tokenize=False, add_generation_prompt=prompt)
    assert small_template.render(messages, add_generation_prompt=prompt) == expected


_REFERENCE: list[Any] = []


def _reference(path: Path) -> Any:
    if not _REFERENCE:
        from transformers import AutoTokenizer

        _REFERENCE.append(AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name))
    return _REFERENCE[0]


@pytest.fixture(scope="module")
def small_template(small_model_path: Path) -> ChatTemplate:
    source = open_model(small_model_path)
    source.weights.close()
    template = load_chat_template(source.tokenizer_files, "<|im_start|>", "<|im_end|>")
    assert template is not None
    return template


class TestContent:
    ECHO = ChatTemplate("{% for m in messages %}[{{ m.content }}]{% endfor %}")

    def test_text_parts_are_joined(self) -> None:
        parts = [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]
        assert self.ECHO.render([{"role": "user", "content": parts}]) == "[a\nb]"

    @pytest.mark.parametrize("message", [{"role": "assistant", "content": None}, {"role": "assistant"}])
    def test_no_content_is_the_empty_string(self, message: dict[str, Any]) -> None:
        assert self.ECHO.render([message]) == "[]"

    def test_a_template_that_reads_only_parts_gets_parts(self) -> None:
        template = ChatTemplate(
            "{% for m in messages %}{% for p in m.content %}"
            "{% if p.type == 'text' %}<{{ p.text }}>{% endif %}{% endfor %}{% endfor %}"
        )
        assert template.render(USER) == "<hi>"

    @pytest.mark.parametrize(
        ("content", "param"),
        [
            (
                [{"type": "text", "text": "a"}, {"type": "image_url", "image_url": {}}],
                "messages[0].content[1]",
            ),
            ([{"type": "text", "text": 7}], "messages[0].content[0]"),
            (["text"], "messages[0].content[0]"),
            (7, "messages[0].content"),
            ({"type": "text", "text": "a"}, "messages[0].content"),
        ],
    )
    def test_other_content_is_refused_by_name(self, content: object, param: str) -> None:
        with pytest.raises(InvalidRequest) as refusal:
            self.ECHO.render([{"role": "user", "content": content}])
        assert refusal.value.param == param

    def test_tool_arguments_are_objects_for_the_template(self) -> None:
        template = ChatTemplate(
            "{% for c in messages[0].tool_calls %}{{ c.function.arguments.city }}{% endfor %}"
        )
        call = {"id": "1", "type": "function", "function": {"name": "f", "arguments": '{"city": "Oslo"}'}}
        assert template.render([{"role": "assistant", "tool_calls": [call]}]) == "Oslo"

    def test_values_that_are_not_json_never_reach_a_template(self) -> None:
        with pytest.raises(InvalidRequest, match="not JSON"):
            self.ECHO.render([{"role": "user", "content": "a", "extra": object()}])

    def test_deep_nesting_is_refused(self) -> None:
        deep: Any = 1
        for _ in range(1000):
            deep = [deep]
        with pytest.raises(InvalidRequest, match="nested"):
            self.ECHO.render([{"role": "user", "content": "a", "extra": deep}])

    def test_the_callers_messages_stay_as_they_are(self) -> None:
        messages = [{"role": "user", "content": [{"type": "text", "text": "a"}]}]
        before = json.dumps(messages)
        self.ECHO.render(messages)
        assert json.dumps(messages) == before

    def test_extra_variables_reach_the_template_but_not_its_own_names(self) -> None:
        template = ChatTemplate("{{ mood }}{{ bos_token }}", bos_token="<s>")
        assert template.render(USER, extra={"mood": "calm"}) == "calm<s>"
        with pytest.raises(InvalidRequest, match="'bos_token' cannot be set"):
            template.render(USER, extra={"bos_token": "x"})

    def test_the_date_comes_from_the_clock(self) -> None:
        template = ChatTemplate("{{ strftime_now('%Y') }}", clock=ManualClock(86_400 * 200))
        assert template.render(USER) == "1970"

    @settings(max_examples=100, deadline=None)
    @given(st.text(st.characters(exclude_categories=["Cs"])))
    def test_content_is_text_never_template(self, text: str) -> None:
        assert self.ECHO.render([{"role": "user", "content": text}]) == f"[{text}]"


def _repeated(change: str, start: str = "'x' * 999", times: int = 99) -> str:
    """A template that applies a change to `n.x` again and again."""
    begin = f"{{% set n = namespace(x={start}) %}}"
    return f"{begin}{{% for i in range({times}) %}}{{% set n.x = {change} %}}{{% endfor %}}"


LARGE = "0x" + "f" * 300

# What each must say is what the sandbox of Jinja or the limits here say about it.
HOSTILE = {
    "class": ("{{ ''.__class__.__mro__ }}", "unsafe"),
    "item": ("{{ ''['__class__']['__mro__'] }}", "unsafe"),
    "globals of a function": ("{{ raise_exception.__globals__.x }}", "unsafe"),
    "globals of a method": ("{{ messages.index.__self__.x }}", "unsafe"),
    "self": ("{{ self.__init__.__globals__ }}", "unsafe"),
    "format": ("{{ '{0.__class__.__mro__}'.format('') }}", "unsafe"),
    "format of an object": ("{{ '{0}'.format(messages) }}", "not text or a number"),
    "through a filter": ("{{ ['']|map(attribute='__class__.__mro__')|list }}", "unsafe"),
    "attr filter": ("{{ ''|attr('__class__') }}", "No filter named"),
    "include": ("{% include '/etc/passwd' %}", "no loader"),
    "append": ("{{ messages.append(1) }}", "unsafe"),
    "pop": ("{{ messages[0].pop('role') }}", "unsafe"),
    "update": ("{{ messages[0].update({'a': 1}) }}", "unsafe"),
    "assign": ("{% set messages[0].role = 'x' %}", "expected token"),
    "namespace attribute": ("{% set messages.x = 'x' %}", "non-namespace"),
    "printing a function": ("{{ raise_exception }}", "not plain data"),
    "huge range": ("{% for i in range(10**9) %}{% endfor %}", "Range too big"),
    "nested loops": (
        "{% for i in range(90000) %}{% for j in range(90000) %}{% endfor %}{% endfor %}",
        "ran for more than",
    ),
    "recursive loop": (
        "{% for i in range(99999) recursive %}{% if i < 1 %}{{ loop(range(99999)) }}{% endif %}"
        "{{ loop([]) }}{{ loop(range(99999)|list) }}{% endfor %}",
        "ran for more than|too often",
    ),
    "recursive macro": ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "calls itself too often"),
    "doubling macro": (
        "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}",
        "ran for more than",
    ),
    "output": ("{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}", "writes more than"),
    "captured output": (
        "{% set x %}{% for i in range(99999) %}" + "x" * 9999 + "{% endfor %}{% endset %}",
        "writes more than",
    ),
    "doubling by ~": (_repeated("n.x ~ n.x"), "too much text"),
    "doubling by +": (_repeated("n.x + n.x"), "too much text"),
    "doubling a list": (_repeated("n.x + n.x", start="[1]"), "too much text"),
    "sharing in a list": (_repeated("[n.x, n.x]"), "too much text|ran for more than"),
    "sharing in a dict": (_repeated("dict(a=n.x, b=n.x)"), "too much text|ran for more than"),
    "squaring by replace": (_repeated("n.x.replace('x', n.x)"), "too much text"),
    "squaring by the replace filter": (_repeated("n.x|replace('x', n.x)"), "too much text"),
    "squaring by join": (_repeated("n.x.join(n.x)"), "too much text|ran for more than"),
    "repeat": ("{{ 'x' * 10**10 }}", "too much text"),
    "repeat a list": ("{{ [1] * 10**10 }}", "too much text"),
    "a large number": ("{{ 9 ** (9 ** 9) }}", "1024 bits"),
    "a larger number": ("{% set x = 2 ** 1000 %}{{ x * x }}", "1024 bits"),
    **{
        f"a large operand of {operator}": (f"{{{{ {LARGE} {operator} 7 }}}}", "1024 bits")
        for operator in ("+", "-", "*", "/", "//", "%", "**")
    },
    "a large divisor": (f"{{{{ 7 // {LARGE} }}}}", "1024 bits"),
    "a large number from text": ("{{ ('f' * 9999)|int(0, 16) }}", "1024 bits"),
    "a large number by map": ("{{ ['f' * 9999]|map('int', 0, 16)|list }}", "1024 bits"),
    "places to round to": ("{{ 1.5|round(999999999, 'ceil') }}", "other than 30 places"),
    "places before the point": ("{{ 1|round(-999999999) }}", "other than 30 places"),
    "rounding text": ("{{ 'x'|round(9, 'floor') }}", "not a number"),
    "rounding a large number": (f"{{{{ {LARGE}|round(9, 'ceil') }}}}", "1024 bits"),
    "text made by map": ("{{ (['x' * 99999] * 3000)|map('upper')|list|length }}", "too much text"),
    "lists made by map": ("{{ ([[1] * 99999] * 300)|map('list')|list|length }}", "too much text"),
    "width of a format": ("{{ '{:>99999999}'.format(1) }}", "width above 999"),
    "width given to a format": ("{{ '{:>{}}'.format(1, 99999999) }}", "width above 999"),
    "percent": ("{{ '%99999999d' % 1 }}", "not supported"),
    "ljust": ("{{ ''.ljust(99999999) }}", "unsafe"),
    "center": ("{{ ''|center(99999999) }}", "No filter named"),
    "indent": ("{{ 'x'|indent(99999999, true) }}", "indents by more than"),
    "indent of JSON": ("{{ [1]|tojson(indent=99999) }}", "indents JSON"),
    "bytes": ("{{ (1).to_bytes(99999999, 'big') }}", "unsafe"),
    "date": ("{{ strftime_now('%99999999Y') }}", "date in a form"),
    "a cycle": ("{% set n = namespace() %}{% set n.x = n %}{{ [n]|tojson }}", "not plain data"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_templates_end_in_a_sentence(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    source, message = HOSTILE[name]
    monkeypatch.setattr(chat_limits, "MAX_CPU_SECONDS", 0.3)
    messages = [{"role": "user", "content": "hi"}]
    with pytest.raises((InvalidRequest, ModelFileError), match=message) as refusal:
        ChatTemplate(source).render(messages)
    assert messages == USER
    sentence = str(refusal.value)
    assert "0x" not in sentence
    assert "tokenmill" not in sentence
    assert len(sentence) < 500


def test_a_template_that_needs_time_gets_it() -> None:
    """Two thousand long messages are no attack."""
    template = ChatTemplate(FAMILIES["namespace, slices, tests"])
    messages = [{"role": "user", "content": "word " * 200}] * 2000
    assert template.render(messages).count("word") == 400_000


def test_time_is_counted_in_processor_seconds_of_the_rendering_thread() -> None:
    used = iter([0.0, 0.1, 1.9, 2.1])
    budget = chat_limits.Budget(cpu=lambda: next(used))
    budget.step()
    budget.step()
    with pytest.raises(chat_limits.TemplateLimit, match="2 seconds"):
        budget.step()


def test_one_template_serves_many_threads() -> None:
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    results: dict[int, str] = {}

    def work(number: int) -> None:
        for _ in range(20):
            results[number] = template.render([{"role": "user", "content": str(number)}] * 50)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {number: str(number) * 50 for number in range(4)}


class TestWhatATemplateReads:
    @pytest.mark.parametrize(
        ("source", "reads"),
        [
            ("{{ messages[0].content }}", False),
            ("{% if tools %}{{ tools | tojson }}{% endif %}", True),
            ("{% for t in tools or [] %}{{ t.function.name }}{% endfor %}", True),
            ("{% if messages[0].role == 'system' %}{{ tools | tojson }}{% endif %}", True),
            ("{% if tools %}tools!{% endif %}", False),
            ("{% if tools %}{{ raise_exception('no tools') }}{% endif %}", False),
        ],
    )
    def test_tools_are_read_when_their_names_reach_the_text(self, source: str, reads: bool) -> None:
        assert ChatTemplate(source).reads_tools is reads

    def test_a_template_for_tools_counts(self) -> None:
        template = ChatTemplate("plain", tool_source="{{ tools }}")
        assert template.reads_tools
        assert template.source == "plain\n{{ tools }}"
        assert ChatTemplate("plain").source == "plain"


class TestLoading:
    def test_gguf(self) -> None:
        files = TokenizerFiles(gguf={"tokenizer.chat_template": "{{ bos_token }}!"})
        template = load_chat_template(files, "<s>", "</s>")
        assert template is not None
        assert template.render(USER) == "<s>!"

    @pytest.mark.parametrize("stored", ["{{ 1 }}", [{"name": "default", "template": "{{ 1 }}"}]])
    def test_configuration_of_a_folder(self, tmp_path: Path, stored: object) -> None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": stored}), "utf-8")
        template = load_chat_template(TokenizerFiles(folder=tmp_path), "", "")
        assert template is not None
        assert template.render(USER) == "1"

    def test_a_template_file_comes_before_the_configuration(self, tmp_path: Path) -> None:
        (tmp_path / "tokenizer_config.json").write_text('{"chat_template": "old"}', "utf-8")
        (tmp_path / "chat_template.jinja").write_text("new", "utf-8")
        template = load_chat_template(TokenizerFiles(folder=tmp_path), "", "")
        assert template is not None
        assert template.render(USER) == "new"

    def test_a_template_for_tools_is_used_with_tools(self, tmp_path: Path) -> None:
        named = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}), "utf-8")
        template = load_chat_template(TokenizerFiles(folder=tmp_path), "", "")
        assert template is not None
        assert template.render(USER) == "plain"
        assert template.render(USER, tools=TOOLS) == "tools"

    def test_a_model_may_have_none(self, tmp_path: Path) -> None:
        assert load_chat_template(TokenizerFiles(folder=tmp_path), "", "") is None
        assert load_chat_template(TokenizerFiles(gguf={}), "", "") is None

    @pytest.mark.parametrize(
        ("stored", "message"),
        [
            ("{% if %}", "line 1"),
            ("{% for m in messages %}", "not valid"),
            ("{{ " + "(" * 5000 + "1" + ")" * 5000 + " }}", "calls itself too often"),
            ("x" * (MAX_TEMPLATE_CHARS + 1), "characters"),
            (7, "must be a string"),
        ],
    )
    def test_templates_that_cannot_work_are_refused(self, stored: object, message: str) -> None:
        with pytest.raises(ModelFileError, match=message):
            load_chat_template(TokenizerFiles(gguf={"tokenizer.chat_template": stored}), "", "")
