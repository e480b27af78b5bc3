"""A sequence's place in its grammar, over a vocabulary small enough to list."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from support.small_vocabulary import EOS, SmallVocabulary
from tokenmill.core.errors import GenerationFailed
from tokenmill.core.request import Grammar
from tokenmill.engine.grammar.compiler import GrammarCompiler
from tokenmill.engine.grammar.matcher import BURST_S, PER_STEP_S, Allowance, GrammarFailed, Matcher

VOCABULARY = SmallVocabulary()


@pytest.fixture(scope="module")
def compiler() -> Iterator[GrammarCompiler]:
    made = GrammarCompiler(VOCABULARY, VOCABULARY.end_ids)
    yield made
    made.close()


def start(compiler: GrammarCompiler, kind: str, source: str) -> Matcher:
    (matcher,) = compiler.matchers(Grammar(kind, source), 1).result()  # type: ignore[arg-type]  # a kind by name
    return matcher


def allowed(matcher: Matcher) -> set[str]:
    bits = np.zeros(-(-VOCABULARY.vocab_size // 32) * 4, dtype=np.uint8)
    matcher.fill(bits)
    ids = np.nonzero(np.unpackbits(bits, bitorder="little", count=VOCABULARY.vocab_size))[0]
    return {VOCABULARY.name(int(number)) for number in ids}


def test_the_mask_holds_every_token_that_can_come_next(compiler: GrammarCompiler) -> None:
    matcher = start(compiler, "regex", "(ab|b)c?d*")
    assert allowed(matcher) == {"a", "b", "ab", "bc", "abc"}
    matcher.accept(VOCABULARY.id("b"))
    assert allowed(matcher) == {"c", "d", "<end>", "<stop>"}
    assert not matcher.complete


def test_it_is_complete_when_nothing_can_follow(compiler: GrammarCompiler) -> None:
    matcher = start(compiler, "regex", "ab?")
    matcher.accept(VOCABULARY.id("a"))
    assert not matcher.complete  # b may come
    matcher.accept(VOCABULARY.id("b"))
    assert matcher.complete


def test_an_end_token_completes_it(compiler: GrammarCompiler) -> None:
    matcher = start(compiler, "regex", "a*")
    matcher.accept(VOCABULARY.id("<stop>"))
    assert matcher.complete


def test_special_tokens_come_by_name_and_never_as_text(compiler: GrammarCompiler) -> None:
    assert "<tool>" not in allowed(start(compiler, "regex", "[a-z<>]+"))
    matcher = start(compiler, "lark", 'start: <tool> "a"\n')
    assert allowed(matcher) == {"<tool>"}
    matcher.accept(VOCABULARY.id("<tool>"))
    assert allowed(matcher) == {"a"}


def test_text_without_a_choice_is_split_as_the_tokenizer_splits_it(compiler: GrammarCompiler) -> None:
    assert allowed(start(compiler, "regex", "abcd")) == {"a"}  # `encode` knows single letters only
    greedy = GrammarCompiler(SmallVocabulary(broken=True), VOCABULARY.end_ids)
    assert allowed(start(greedy, "regex", "abcd")) == {"abc"}
    greedy.close()


def test_copies_go_their_own_ways(compiler: GrammarCompiler) -> None:
    one, other = compiler.matchers(Grammar("regex", "a|bc"), 2).result()
    one.accept(VOCABULARY.id("a"))
    assert one.complete
    assert not other.complete
    assert allowed(other) == {"a", "b", "bc"}


def test_a_token_outside_the_grammar_fails(compiler: GrammarCompiler) -> None:
    matcher = start(compiler, "regex", "ab")
    with pytest.raises(GrammarFailed) as caught:
        matcher.accept(VOCABULARY.id("d"))
    assert isinstance(caught.value, GenerationFailed)
    assert caught.value.code == "grammar_failed"
    with pytest.raises(GrammarFailed):
        allowed(matcher)


def test_an_ambiguous_grammar_fails_within_its_limits(compiler: GrammarCompiler) -> None:
    matcher = start(compiler, "lark", 'start: start start | "a" | ""\n')
    with pytest.raises(GrammarFailed):
        for _ in range(10_000):
            allowed(matcher)
            matcher.accept(VOCABULARY.id("a"))


def test_a_grammar_has_so_much_time_a_token(compiler: GrammarCompiler) -> None:
    (fast,) = ticking(compiler, PER_STEP_S * 0.45)
    for _ in range(1000):
        step(fast)
    (slow,) = ticking(compiler, PER_STEP_S)  # twice in a step
    for _ in range(int(BURST_S / PER_STEP_S) - 1):
        step(slow)
    with pytest.raises(GrammarFailed, match="too much time"):
        for _ in range(3):
            step(slow)


def test_the_choices_of_a_request_share_its_time(compiler: GrammarCompiler) -> None:
    """Four choices get together what one gets: a step may cost as much, and the burst is spent once."""
    fast = ticking(compiler, PER_STEP_S * 0.45 / 4, choices=4)
    for _ in range(1000):
        for matcher in fast:
            step(matcher)
    slow = ticking(compiler, PER_STEP_S / 4, choices=4)
    with pytest.raises(GrammarFailed, match="too much time"):
        for _ in range(int(BURST_S / PER_STEP_S) + 2):
            for matcher in slow:
                step(matcher)


def test_a_request_gets_matchers_with_one_allowance(compiler: GrammarCompiler) -> None:
    one, other = compiler.matchers(Grammar("regex", "a*"), 2).result()
    (third,) = compiler.matchers(Grammar("regex", "a*"), 1).result()
    assert one._allowance is other._allowance is not third._allowance


def step(matcher: Matcher) -> None:
    allowed(matcher)
    matcher.accept(VOCABULARY.id("a"))


def ticking(compiler: GrammarCompiler, seconds: float, choices: int = 1) -> list[Matcher]:
    """The matchers of a request under a clock by which every mask and every token takes `seconds`."""
    moments = itertools.count()
    allowance = Allowance(choices, spent=lambda: next(moments) * seconds)
    return [Matcher(start(compiler, "regex", "a*")._state, (EOS,), allowance) for _ in range(choices)]
