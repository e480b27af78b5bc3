"""Requests that want their prompt computed: alone, for its log-probabilities, or for an embedding."""

from __future__ import annotations

import random
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch

from support.fake_engine import VOCAB, Harness, expected_embedding, expected_output, next_token, state_of
from tokenmill.core.errors import ContextLengthExceeded, InvalidRequest
from tokenmill.core.events import Preempted, PrefixLookup, RequestAccepted, RequestEnded, StepCompleted
from tokenmill.core.request import Pooling
from tokenmill.planner.activations import PROMPT_LOGIT_ROWS

# One logit of 10 and 31 of -10: log softmax of the one, and of each other.
LIKELY = float(torch.log_softmax(torch.tensor([10.0] + [-10.0] * (VOCAB - 1)), 0)[0])
UNLIKELY = LIKELY - 20


def prompt_of(length: int, seed: int = 0) -> list[int]:
    chance = random.Random(seed)
    found = [chance.randrange(1, VOCAB)]
    while len(found) < length:  # every third token is the one the model expects
        found.append(next_token(found) if len(found) % 3 == 0 else chance.randrange(1, VOCAB))
    return found


def expected_logprobs(prompt: list[int]) -> list[float]:
    return [LIKELY if next_token(prompt[:at]) == prompt[at] else UNLIKELY for at in range(1, len(prompt))]


def check_logprobs(engine: Harness, name: str, prompt: list[int], index: int = 0) -> None:
    first, *rest = engine.deltas(name, index)
    assert [delta.prompt_logprobs for delta in rest] == [()] * len(rest)
    assert first.prompt_logprobs[0] is None
    entries = [entry for entry in first.prompt_logprobs if entry is not None]
    assert [entry.token_id for entry in entries] == prompt[1:]
    assert [entry.logprob for entry in entries] == pytest.approx(expected_logprobs(prompt))
    assert [entry.rank == 1 for entry in entries] == [e > -1 for e in expected_logprobs(prompt)]


def embedding(engine: Harness, name: str) -> list[float]:
    (delta,) = engine.deltas(name)
    assert delta.finish_reason == "stop"
    found: list[float] = np.frombuffer(delta.embedding, "<f4").tolist()
    return found


@pytest.mark.parametrize("length", [1, 15, 16, 17, 100])
@pytest.mark.parametrize("budget", [7, 512])
def test_no_tokens_of_output_computes_the_prompt_and_ends(length: int, budget: int) -> None:
    engine = Harness(max_num_batched_tokens=budget)
    prompt = prompt_of(length)
    engine.add("r", prompt, max_tokens=0, n=2)
    engine.add("other", prompt, max_tokens=3)
    engine.run()
    for index in (0, 1):
        (delta,) = engine.deltas("r", index)
        assert (delta.text, delta.token_ids, delta.finish_reason) == ("", (), "length")
        assert delta.usage is not None
        assert (delta.usage.prompt_tokens, delta.usage.completion_tokens) == (length, 0)
    assert engine.tokens("other") == expected_output(prompt, 3)
    assert engine.core.scheduler.pool.active == 0


def test_its_books_balance_and_its_blocks_serve_others() -> None:
    engine = Harness()
    prompt = prompt_of(50)
    engine.add("alone", prompt, max_tokens=0)
    engine.run()
    engine.add("later", prompt)
    engine.run()
    ended = engine.of(RequestEnded)
    assert [(event.outcome, event.finish_reasons) for event in ended] == [("finished", ("length",))] * 2
    assert (ended[0].completion_tokens, ended[0].ttft_s, ended[0].prompt_tokens) == (0, None, 50)
    assert [event.max_tokens for event in engine.of(RequestAccepted)] == [0, 8]
    assert [event.hit_tokens for event in engine.of(PrefixLookup)] == [0, 48]
    steps = engine.of(StepCompleted)
    assert sum(step.prefill_tokens for step in steps) == 50 + 2
    assert sum(step.sampled_tokens for step in steps) == 8


def test_a_prompt_alone_needs_a_place_for_its_last_token() -> None:
    engine = Harness(num_blocks=2)
    engine.add("full", prompt_of(32), max_tokens=0)
    engine.add("one more", prompt_of(32), max_tokens=1)
    engine.add("embedded", prompt_of(32), pooling="mean")
    refused: list[dict[str, Any]] = [{"max_tokens": 0}, {"pooling": "last"}]
    for more in refused:
        with pytest.raises(ContextLengthExceeded, match="32 tokens; the prompt has 33 and 0"):
            engine.add("over", prompt_of(33), **more)
    engine.run()
    assert [o.done for o in engine.outputs["full"]] == [True]
    assert engine.tokens("one more") == expected_output(prompt_of(32), 1)


@pytest.mark.parametrize("budget", [1, 7, 32, 512])
@pytest.mark.parametrize("length", [1, 2, 33, 200])
def test_every_prompt_token_gets_its_log_probability(budget: int, length: int) -> None:
    engine = Harness(max_num_batched_tokens=budget)
    prompt = prompt_of(length)
    engine.add("r", prompt, prompt_logprobs=0, max_tokens=4)
    engine.add("alone", prompt, prompt_logprobs=0, max_tokens=0)
    engine.run()
    check_logprobs(engine, "r", prompt)
    check_logprobs(engine, "alone", prompt)
    assert engine.tokens("r") == expected_output(prompt, 4)


def test_alternatives_come_in_falling_order_and_the_token_itself_besides() -> None:
    engine = Harness()
    prompt = prompt_of(20)
    engine.add("r", prompt, prompt_logprobs=2, max_tokens=0)
    engine.run()
    for at, entry in enumerate(engine.deltas("r")[0].prompt_logprobs):
        if entry is not None:
            assert [top.logprob for top in entry.top] == pytest.approx([LIKELY, UNLIKELY])
            assert entry.top[0].token_id == next_token(prompt[:at])
            assert (entry.token_id, entry.token) == (prompt[at], chr(64 + prompt[at]))


def test_what_the_cache_holds_is_computed_again_for_its_logits() -> None:
    engine = Harness()
    prompt = prompt_of(60)
    engine.add("before", prompt)
    engine.run()
    engine.add("read", prompt, prompt_logprobs=0)
    engine.run()
    engine.add("after", prompt)
    engine.run()
    assert [event.hit_tokens for event in engine.of(PrefixLookup)] == [0, 0, 48]
    check_logprobs(engine, "read", prompt)


@pytest.mark.parametrize("flags", [{}, {"enable_prefix_caching": False}, {"batching": "static"}])
def test_all_choices_tell_what_was_read_once(flags: dict[str, Any]) -> None:
    engine = Harness(**flags)
    prompt = prompt_of(40)
    engine.add("r", prompt, prompt_logprobs=0, n=3, temperature=1.0, max_tokens=5)
    engine.run()
    for index in range(3):
        check_logprobs(engine, "r", prompt, index)
    assert engine.program.logits_read == 39 + 3 * 5


def test_a_step_reads_a_bounded_number_of_prompt_logits() -> None:
    engine = Harness(num_blocks=256)
    asked = {f"r{i}": prompt_of(150, seed=i) for i in range(4)}
    for name, prompt in asked.items():
        engine.add(name, prompt, prompt_logprobs=0, max_tokens=3)
    engine.add("plain", prompt_of(150, seed=9), max_tokens=3)
    engine.run()
    assert engine.program.most_logits <= PROMPT_LOGIT_ROWS + 5
    for name, prompt in asked.items():
        check_logprobs(engine, name, prompt)
    # who reads no logits is not held up by those who do
    first = [o.request_id for o in engine.outputs["plain"]]
    assert first
    ended = [event.request_id for event in engine.of(RequestEnded)]
    assert ended[0] == "plain"


@pytest.mark.parametrize("caching", [True, False])
def test_preemption_neither_loses_nor_repeats_a_position(caching: bool) -> None:
    engine = Harness(num_blocks=16, max_num_batched_tokens=24, enable_prefix_caching=caching, max_num_seqs=6)
    older = {f"old{i}": prompt_of(20, seed=i) for i in range(3)}
    read = {f"read{i}": prompt_of(70, seed=10 + i) for i in range(2)}
    for name, prompt in older.items():
        engine.add(name, prompt, max_tokens=80)
    for number, (name, prompt) in enumerate(read.items()):
        more: dict[str, Any] = {"pooling": "mean"} if number else {"prompt_logprobs": 0, "max_tokens": 30}
        engine.add(name, prompt, **more)
    engine.run()
    lost = [event for event in engine.of(Preempted) if event.request_id.startswith("read")]
    assert lost and max(event.lost_tokens for event in lost) > 0
    check_logprobs(engine, "read0", read["read0"])
    assert embedding(engine, "read1") == pytest.approx(expected_embedding(read["read1"], "mean"))
    assert engine.tokens("read0") == expected_output(read["read0"], 30)


@pytest.mark.parametrize("pooling", ["mean", "last"])
@pytest.mark.parametrize("length", [1, 16, 75])
def test_an_embedding_is_of_unit_length_and_the_same_bits_for_any_chunks(
    pooling: Pooling, length: int
) -> None:
    found = set()
    prompt = prompt_of(length)
    for budget in (1, 7, 512):
        engine = Harness(max_num_batched_tokens=budget)
        engine.add("r", prompt, pooling=pooling, n=3)  # sampling is not read
        engine.run()
        assert embedding(engine, "r") == pytest.approx(expected_embedding(prompt, pooling))
        found.add(engine.deltas("r")[0].embedding)
        assert engine.program.logits_read == 0
        usage = engine.deltas("r")[0].usage
        assert usage is not None
        assert (usage.prompt_tokens, usage.completion_tokens) == (length, 0)
    assert len(found) == 1


def test_the_last_token_may_find_the_others_in_the_cache_and_the_mean_may_not() -> None:
    engine = Harness()
    prompt = prompt_of(50)
    asked: dict[str, Pooling] = {"a": "mean", "b": "last", "c": "mean"}
    for name, pooling in asked.items():
        engine.add(name, prompt, pooling=pooling)
        engine.run()
    assert [event.hit_tokens for event in engine.of(PrefixLookup)] == [0, 48, 0]
    assert embedding(engine, "b") == pytest.approx(expected_embedding(prompt, "last"))
    assert embedding(engine, "c") == embedding(engine, "a")


def test_one_that_breaks_fails_alone_and_what_the_others_read_counts_once() -> None:
    engine = Harness()
    engine.program.broken, engine.program.corrupt = {30}, {31}
    good = {"scored": prompt_of(50, seed=0), "pooled": prompt_of(40, seed=1)}
    assert all(prompt[0] < 30 for prompt in good.values())
    engine.add("scored", good["scored"], prompt_logprobs=0)
    engine.add("pooled", good["pooled"], pooling="mean")
    engine.add("broken", [30, 1, 2], pooling="mean")
    engine.add("corrupt", [31, 1, 2], prompt_logprobs=0, max_tokens=0)
    engine.add("corrupt state", [31, 4, 5], pooling="last")
    engine.run()
    check_logprobs(engine, "scored", good["scored"])
    assert embedding(engine, "pooled") == pytest.approx(expected_embedding(good["pooled"], "mean"))
    outcomes = {event.request_id: event.outcome for event in engine.of(RequestEnded)}
    assert outcomes == {
        "scored": "finished",
        "pooled": "finished",
        "broken": "failed",
        "corrupt": "failed",
        "corrupt state": "failed",
    }
    assert engine.core.scheduler.pool.active == 0


@pytest.mark.parametrize(
    ("sampling", "param"),
    [
        ({"prompt_logprobs": 21}, "prompt_logprobs"),
        ({"prompt_logprobs": -1}, "prompt_logprobs"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": 0, "min_tokens": 1}, "min_tokens"),
    ],
)
def test_values_outside_the_table_are_refused(sampling: dict[str, Any], param: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        Harness().add("r", [1, 2], **sampling)
    assert caught.value.param == param


def test_log_probabilities_of_very_long_prompts_are_bounded_in_number() -> None:
    # 13,000 x 21 > 2^18 = 262,144 >= 13,000 x 20
    engine = Harness(num_blocks=1024, max_model_len=1 << 14)
    with pytest.raises(InvalidRequest, match="at most 262144, not 13000 x 21"):
        engine.add("r", [1] * 13_000, prompt_logprobs=20, max_tokens=0)
    engine.add("r", [1] * 13_000, prompt_logprobs=19, max_tokens=0)


def test_no_two_positions_are_alike() -> None:
    """The oracle itself: were states or next tokens equal, a wrong position would go unseen."""
    prompt = prompt_of(60)
    states = [state_of(prompt[: at + 1]).tolist() for at in range(60)]
    assert all(one != other for one, other in pairwise(states))
    assert {round(value) for value in expected_logprobs(prompt)} == {0, -20}
