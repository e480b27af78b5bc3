"""Models that think aloud: thoughts apart from the answer, counted, and free of the answer's grammar."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.gateways import CHAT, Gateway, chat, make_gateway
from support.grammars import GrammarCheck
from support.scripted import ByteTokenizer, LineTemplate
from tokenmill.core.delta import Delta, Usage
from tokenmill.core.request import GenerateRequest, Grammar
from tokenmill.gateway.reasoning import Thinking, ThoughtSplitter, after_thoughts, thinking_of
from tokenmill.gateway.tools import hermes, llama3, mistral
from tokenmill.gateway.tools.declared import Offer, Tool
from tokenmill.gateway.tools.grammar import call_grammar
from tokenmill.gateway.tools.syntax import Syntax

TEMPLATE = "{{ '<think>' }}...{{ '</think>' }}"
TOKENS = {"<think>": 257, "</think>": 258}


def split(begun: bool, *pieces: str) -> tuple[str, str]:
    splitter = ThoughtSplitter(begun)
    parts = [*(splitter.feed(piece) for piece in pieces), splitter.finish()]
    return "".join(thought for thought, _ in parts), "".join(text for _, text in parts)


@pytest.mark.parametrize(
    ("begun", "text", "expected"),
    [
        (False, "<think>\nHm, <b>?\n</think>\n\nYes. \n", ("Hm, <b>?", "Yes. \n")),
        (False, " <think></think>Yes", ("", "Yes")),
        (False, "Yes <think>no</think>", ("", "Yes <think>no</think>")),
        (False, "<thin", ("", "<thin")),
        (False, " \n", ("", " \n")),
        (False, "", ("", "")),
        (False, "<think>cut of", ("cut of", "")),
        (False, "<think>a </thin", ("a </thin", "")),
        (True, "Hm.\n</think>\n\nYes", ("Hm.", "Yes")),
        (True, "Hm", ("Hm", "")),
        (True, "</think>a</think>", ("", "a</think>")),
    ],
)
def test_thoughts_and_answer(begun: bool, text: str, expected: tuple[str, str]) -> None:
    assert split(begun, text) == expected
    assert split(begun, *text) == expected


@settings(max_examples=100, deadline=None)
@given(
    st.booleans(),
    st.lists(st.sampled_from(["<think>", "</think>", "<", "think>", "a", " ", "\n"])),
    st.data(),
)
def test_the_split_does_not_depend_on_the_cuts(
    begun: bool, fragments: list[str], data: st.DataObject
) -> None:
    text = "".join(fragments)
    place = data.draw(st.integers(0, len(text)))
    assert split(begun, text[:place], text[place:]) == split(begun, text) == split(begun, *text)


def test_the_template_and_its_prompt_say_whether_a_model_thinks() -> None:
    assert thinking_of("{{ messages }}", "a<think>", {}) is None
    assert thinking_of(TEMPLATE, "assistant:", TOKENS) == Thinking(False, 258)
    assert thinking_of(TEMPLATE, "assistant:<think>\n", {}) == Thinking(True, None)
    assert thinking_of(TEMPLATE, "assistant:<think>\n\n</think>\n\n", TOKENS) == Thinking(False, 258)


@pytest.mark.parametrize("tokens", [{}, TOKENS], ids=["marks are text", "marks are tokens"])
@pytest.mark.parametrize(
    "grammar",
    [Grammar("json_schema", '{"const": 1}'), Grammar("lark", 'start: "1"\n')],
    ids=["schema", "lark"],
)
def test_the_grammar_begins_after_free_thoughts(tokens: dict[str, int], grammar: Grammar) -> None:
    check = GrammarCheck(tokens)
    begun = after_thoughts(grammar, Thinking(True, tokens.get("</think>")), tokens)
    assert check.matches(begun, "any {thing}\n</think>\n\n1")
    assert not check.matches(begun, "1")
    assert not check.matches(begun, "a</think>2")
    free = after_thoughts(grammar, Thinking(False, tokens.get("</think>")), tokens)
    assert check.matches(free, "<think>any\n</think>\n\n1")
    assert check.matches(free, "1")
    assert not check.matches(free, "x")


@pytest.mark.parametrize("tokens", [False, True], ids=["marks are text", "marks are tokens"])
@pytest.mark.parametrize("begun", [False, True])
@pytest.mark.parametrize(
    "syntax", [hermes.SYNTAX, llama3.SYNTAX, mistral.NAMED], ids=["hermes", "llama3", "mistral"]
)
def test_thoughts_come_before_calls_and_before_free_text(syntax: Syntax, begun: bool, tokens: bool) -> None:
    names = (
        {mark: 257 + n for n, mark in enumerate(("<think>", "</think>", *syntax.markers))} if tokens else {}
    )
    tool = Tool("put", "", {"type": "object", "properties": {}}, strict=False)
    grammar = call_grammar(Offer([tool], "auto"), syntax, names)
    grammar = after_thoughts(grammar, Thinking(begun, names.get("</think>")), names)
    check = GrammarCheck(names)
    assert check.error(grammar) == ""
    thoughts = ("" if begun else "<think>") + "\nCall {it}?\n</think>\n\n"
    call = syntax.answer([("put", "{}")])
    for text in (f"{thoughts}Yes.\n", thoughts + call, thoughts, *([] if begun else ["Yes.", call])):
        assert check.matches(grammar, text), text
    if not syntax.bare:  # a line break after the thoughts makes of what is no call free text
        assert not check.matches(grammar, thoughts + syntax.answer([("other", "{}")]))


def thinker(*texts: tuple[str, int]) -> Gateway:
    """A model that says these texts, each with so many tokens; the one after which it answers is 258."""

    async def script(request: GenerateRequest) -> AsyncGenerator[Delta, None]:
        for text, tokens in texts:
            ids = (258,) if text.endswith("</think>") and tokens == 1 else (7,) * tokens
            yield Delta(text=text, token_ids=ids)
        yield Delta(finish_reason="stop", usage=Usage(5, sum(tokens for _, tokens in texts)))

    class Thinks(ByteTokenizer):
        special_tokens = TOKENS

    return make_gateway(script, template=LineTemplate(TEMPLATE), tokenizer=Thinks())


async def test_thoughts_have_their_own_member_and_are_counted() -> None:
    gateway = thinker(("<think>", 1), ("\nHm", 2), (". ", 1), ("</think>", 1), ("\n\nYes", 2))
    answer = (await gateway.post(CHAT, chat())).json()
    assert answer["choices"][0]["message"] == {
        "role": "assistant",
        "content": "Yes",
        "reasoning_content": "Hm.",
        "refusal": None,
    }
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 5
    found = await gateway.stream(CHAT, chat(stream_options={"include_usage": True}))
    deltas = [chunk["choices"][0]["delta"] for chunk in found[:-1]]
    assert "".join(delta.get("reasoning_content", "") for delta in deltas) == "Hm."
    assert "".join(delta.get("content") or "" for delta in deltas) == "Yes"
    assert found[-1]["usage"] == answer["usage"]
    assert gateway.replica.requests[0].sampling.visible_ids == (257, 258)


async def test_a_model_that_does_not_think_this_time_just_answers() -> None:
    answer = (await thinker(("Yes", 2)).post(CHAT, chat())).json()
    assert answer["choices"][0]["message"] == {"role": "assistant", "content": "Yes", "refusal": None}
    assert answer["usage"]["completion_tokens_details"]["reasoning_tokens"] == 0
