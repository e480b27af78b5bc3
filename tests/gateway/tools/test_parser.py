"""Text to content and calls: each family's form, whatever way the text is cut, well-formed or not."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenmill.gateway.tools import hermes, llama3, mistral, phi4
from tokenmill.gateway.tools.parser import Arguments, CallStarted, Content, Event, ToolCallParser
from tokenmill.gateway.tools.syntax import Syntax

NAMES = {"get_weather", "put"}
SYNTAXES = {
    "hermes": hermes.SYNTAX,
    "llama3": llama3.SYNTAX,
    "mistral list": mistral.LISTED,
    "mistral named": mistral.NAMED,
    "phi4": phi4.SYNTAX,
}
ARGUMENTS = '{"city": "Pa}r\\"{is]", "days": [1, {"a": "\\u00e9\\\\"}]}'

Read = tuple[str, list[tuple[str, str]]]


def joined(events: list[Event]) -> Read:
    """Content as one text, and calls as name and arguments."""
    content, calls = "", list[list[str]]()
    for event in events:
        match event:
            case Content(text):
                content += text
            case CallStarted(index, name):
                assert index == len(calls), "calls are numbered in the order they begin"
                calls.append([name, ""])
            case Arguments(index, text):
                assert index == len(calls) - 1, "arguments belong to the last call"
                calls[index][1] += text
    return content, [(name, arguments) for name, arguments in calls]


def ended(syntax: Syntax, *pieces: str, required: bool = False) -> tuple[Read, bool]:
    """What was read, and whether the text ended inside a call."""
    parser = ToolCallParser(syntax, NAMES, required=required)
    events = [event for piece in pieces for event in parser.feed(piece)] + parser.finish()
    return joined(events), parser.cut


def read(syntax: Syntax, *pieces: str) -> Read:
    return ended(syntax, *pieces)[0]


def written(syntax: Syntax, *calls: tuple[str, str]) -> str:
    """An answer as the family's grammar prescribes it."""
    return syntax.answer(calls)


@pytest.mark.parametrize("family", SYNTAXES)
def test_one_call_and_two(family: str) -> None:
    syntax = SYNTAXES[family]
    one, two = ("get_weather", ARGUMENTS), ("put", "{}")
    assert read(syntax, written(syntax, one)) == ("", [one])
    assert read(syntax, written(syntax, one, two)) == ("", [one, two])
    assert read(syntax, written(syntax, two, one)) == ("", [two, one])


@pytest.mark.parametrize("family", sorted({*SYNTAXES} - {"llama3"}))
def test_text_before_and_after_calls_is_content_without_the_space_between(family: str) -> None:
    syntax = SYNTAXES[family]
    call = written(syntax, ("put", "{}"))
    assert read(syntax, f"Let me see.\n\n{call}") == ("Let me see.", [("put", "{}")])
    assert read(syntax, f"\n{call}\n") == ("", [("put", "{}")])
    assert read(syntax, f"a {call}\n b {call}") == ("ab", [("put", "{}")] * 2)


@pytest.mark.parametrize("family", SYNTAXES)
@pytest.mark.parametrize(
    "text", ["", "plain", " \n", "a < b [c] { d", "<tool_cal", "x [TOOL_CALL", "{", '{"a": 1}', " {}", "\n<"]
)
def test_text_without_calls_is_content_to_the_letter(family: str, text: str) -> None:
    assert read(SYNTAXES[family], text) == (text, [])


MALFORMED = [
    "<tool_call></tool_call>",
    "<tool_call>hello</tool_call>",
    '<tool_call>{"name": "unknown", "arguments": {}}</tool_call>',
    '<tool_call>{"name": "put", "arguments": 5}</tool_call>',
    '<tool_call>{"name": ["put"], "arguments": {}}</tool_call>',
    '<tool_call>{"name": "put", "arguments": "no json"}</tool_call>',
    '<tool_call>{"arguments": {}}</tool_call>',
    "<tool_call>{'name': 'put'}</tool_call> and more",
    '<tool_call>{"a": ' + "[" * 3000 + "]" * 3000 + "}",
    "<tool_call>{__import__('os')}</tool_call>",
]


@pytest.mark.parametrize("text", MALFORMED)
def test_what_is_no_call_after_all_is_content_with_its_markers(text: str) -> None:
    assert read(hermes.SYNTAX, f"See: {text}") == (f"See: {text}", [])
    assert read(hermes.SYNTAX, *f"See: {text}") == (f"See: {text}", [])


def test_a_call_after_a_malformed_one_is_a_call() -> None:
    text = '<tool_call>{"name": "x"}</tool_call>\n' + written(hermes.SYNTAX, ("put", "{}"))
    assert read(hermes.SYNTAX, text) == ('<tool_call>{"name": "x"}</tool_call>', [("put", "{}")])


@pytest.mark.parametrize(
    "text",
    [
        '<tool_call>[{"name": "put", "arguments": {"a": 1}}]</tool_call>',
        '<tool_call>{"arguments": {"a":1}, "name": "put"}</tool_call>',
        '<tool_call>{"name": "put", "arguments": "{\\"a\\": 1}"}</tool_call>',
        '<tool_call>\n{ "name" :"put","parameters":\n{"a": 1} ,"id": "}{"}\n</tool_call>',
        '<tool_call>{"name": "put", "arguments": {"a": 1}</tool_call>',
        '<tool_call>{"name": "put", "arguments": {"a": 1}}',
    ],
)
def test_what_models_really_write_is_read(text: str) -> None:
    content, [(name, arguments)] = read(hermes.SYNTAX, text)
    assert (content, name, json.loads(arguments)) == ("", "put", {"a": 1})


def test_a_list_inside_tags_may_hold_several_calls() -> None:
    text = '<tool_call>[{"name": "put", "arguments": {}}, {"name": "put"}]</tool_call>'
    assert read(hermes.SYNTAX, text) == ("", [("put", "{}"), ("put", "{}")])


def test_llama_calls_may_follow_their_token_or_be_the_whole_answer() -> None:
    call = '{"name": "put", "parameters": {}}'
    assert read(llama3.SYNTAX, f"<|python_tag|>{call}") == ("", [("put", "{}")])
    assert read(llama3.SYNTAX, f"  {call};\n{call}") == ("", [("put", "{}")] * 2)
    assert read(llama3.SYNTAX, f"Use {call}") == (f"Use {call}", []), "an example in prose is no call"


def test_mistral_calls_may_carry_ids() -> None:
    named = '[TOOL_CALLS]put[CALL_ID]abcdefghi[ARGS]{"a": 1}'
    assert read(mistral.NAMED, named) == ("", [("put", '{"a": 1}')])
    listed = '[TOOL_CALLS][{"name": "put", "arguments": {}, "id": "abcdefghi"}]'
    assert read(mistral.LISTED, listed) == ("", [("put", "{}")])


def test_a_cut_answer_keeps_what_was_written_of_the_arguments() -> None:
    text = 'Hm. <tool_call>\n{"name": "put", "arguments": {"a": "b'
    assert read(hermes.SYNTAX, text) == ("Hm.", [("put", '{"a": "b')])


@pytest.mark.parametrize("family", SYNTAXES)
@pytest.mark.parametrize("before", ["", "two"])
def test_the_head_of_a_call_that_was_cut_is_dropped(family: str, before: str) -> None:
    syntax = SYNTAXES[family]
    whole = [("put", "{}")] if before else []
    start = written(syntax, *whole, ("put", '{"n": 1}'))
    first = start.index("put", len(written(syntax, *whole)) - len(syntax.after) if before else 0)
    begun = syntax.before or syntax.head.partition("{name}")[0]
    for place in range(first if before else len(begun), start.index('{"n"')):
        assert ended(syntax, *start[:place]) == (("", whole), True)
    for place in range(start.index('{"n"') + 1, start.index("1}") + 2):
        (content, calls), cut = ended(syntax, start[:place])
        assert (content, len(calls), cut) == ("", len(whole) + 1, not start[:place].endswith("1}"))
    assert ended(syntax, start)[1] is False


@pytest.mark.parametrize("family", SYNTAXES)
def test_where_a_call_is_required_a_beginning_of_its_marker_is_one_too(family: str) -> None:
    syntax = SYNTAXES[family]
    text = written(syntax, ("put", "{}"))
    for place in range(text.index("put") + 1):
        assert ended(syntax, text[:place], required=True) == (("", []), True)
    assert ended(syntax, text, required=True) == (("", [("put", "{}")]), False)
    assert ended(syntax, f"{text}\n{text[:3]}", required=True)[0][0] == ""


def test_json_that_is_no_call_stays_content_however_it_ends() -> None:
    for text in ('{"a": 1', '{"n', "{"):
        assert ended(llama3.SYNTAX, text) == ((text, []), False)
    assert ended(llama3.SYNTAX, '{"name": "pu') == (("", []), True), "no text may begin so"


def test_only_what_may_begin_a_marker_is_held_back() -> None:
    parser = ToolCallParser(hermes.SYNTAX, NAMES)
    assert parser.feed("a <b <tool") == [Content("a <b")]
    assert parser.feed("box> c ") == [Content(" <toolbox> c")]
    assert parser.feed("d") == [Content(" d")]


def test_arguments_are_handed_on_as_they_come() -> None:
    parser = ToolCallParser(hermes.SYNTAX, NAMES)
    assert parser.feed('<tool_call>{"name": "put", "arguments": ') == []
    assert parser.feed('{"a"') == [CallStarted(0, "put"), Arguments(0, '{"a"')]
    assert parser.feed(": 1") == [Arguments(0, ": 1")]
    assert parser.feed("}}</tool") == [Arguments(0, "}")]
    assert parser.feed("_call>") == parser.finish() == []


FRAGMENTS = st.sampled_from(
    [
        *(
            "<tool_call>",
            "</tool_call>",
            "<|python_tag|>",
            "[TOOL_CALLS]",
            "[ARGS]",
            "<|tool_call|>",
            "<|/tool_call|>",
        ),
        *(
            '{"name": "put", "arguments": ',
            '{"name": "put", "parameters": {"a": 1}}',
            '"put"',
            "put",
            "unknown",
        ),
        *("{", "}", "[", "]", ",", ";", ":", '"', "\\", " ", "\n", "a", "<", "{}", '{"a": "}"}', "name"),
    ]
)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(SYNTAXES)), st.lists(FRAGMENTS, max_size=12), st.data())
def test_the_result_does_not_depend_on_the_cuts(
    family: str, fragments: list[str], data: st.DataObject
) -> None:
    syntax, text = SYNTAXES[family], "".join(fragments)
    whole = read(syntax, text)
    assert read(syntax, *text) == whole
    place = data.draw(st.integers(0, len(text)))
    assert read(syntax, text[:place], text[place:]) == whole


@pytest.mark.parametrize("family", SYNTAXES)
def test_every_cut_of_a_call_gives_the_same(family: str) -> None:
    syntax = SYNTAXES[family]
    text = written(syntax, ("get_weather", ARGUMENTS), ("put", '{"x": "<tool_call>"}'))
    whole = read(syntax, text)
    assert len(whole[1]) == 2
    for place in range(len(text)):
        assert read(syntax, text[:place], text[place:]) == whole


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda items: st.lists(items, max_size=3) | st.dictionaries(st.text(), items, max_size=3),
    max_leaves=8,
)


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(sorted(SYNTAXES)), st.dictionaries(st.text(), JSON, max_size=3), st.booleans())
def test_any_arguments_come_back_as_written(
    family: str, arguments: dict[str, object], ascii_only: bool
) -> None:
    syntax = SYNTAXES[family]
    text = json.dumps(arguments, ensure_ascii=ascii_only)
    assert read(syntax, *written(syntax, ("put", text))) == ("", [("put", text)])
