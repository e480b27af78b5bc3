"""The engine core over a model whose answers reveal any mistake in what is stored where."""

from __future__ import annotations

import random
from typing import Any

import pytest

from support.fake_engine import MOVED_BYTES, MULTIPLY_ADDS, Harness, expected_output
from tokenmill.core.errors import ContextLengthExceeded, InvalidRequest
from tokenmill.core.events import Preempted, PrefixLookup, RequestAccepted, RequestEnded, StepCompleted


def prompts(count: int, seed: int = 0, low: int = 1, high: int = 90) -> dict[str, list[int]]:
    chance = random.Random(seed)
    return {
        f"r{i}": [chance.randrange(1, 32) for _ in range(chance.randint(low, high))] for i in range(count)
    }


@pytest.mark.parametrize("budget", [1, 7, 32, 512])
@pytest.mark.parametrize("blocks", [8, 24, 256])
def test_answers_do_not_depend_on_chunks_batch_or_pool(budget: int, blocks: int) -> None:
    engine = Harness(num_blocks=blocks, max_num_batched_tokens=budget)
    asked = prompts(12)
    for name, prompt in asked.items():
        engine.add(name, prompt, max_tokens=20)
    engine.run()
    assert engine.program.largest_step <= budget
    for name, prompt in asked.items():
        assert engine.tokens(name) == expected_output(prompt, 20)


def test_every_answer_ends_once_with_a_reason_and_exact_usage() -> None:
    engine = Harness(num_blocks=12)
    asked = prompts(10, seed=1)
    for name, prompt in asked.items():
        engine.add(name, prompt, max_tokens=5, n=2)
    engine.run()
    for name, prompt in asked.items():
        for index in (0, 1):
            deltas = [o.delta for o in engine.outputs[name] if o.delta and o.delta.index == index]
            assert [d.finish_reason for d in deltas] == [None] * 4 + ["length"]
            usage = deltas[-1].usage
            assert usage is not None
            assert (usage.prompt_tokens, usage.completion_tokens) == (len(prompt), 5)
        assert [o.done for o in engine.outputs[name]] == [False] * 9 + [True]


def test_a_repeated_prompt_is_answered_from_the_prefix_cache() -> None:
    engine = Harness()
    prompt = list(range(1, 32)) * 2
    for name in ("first", "second"):
        engine.add(name, prompt)
        engine.run()
    hits = [event.hit_tokens for event in engine.events if isinstance(event, PrefixLookup)]
    # 62 tokens: three full blocks of 16 lie before the last token
    assert hits == [0, 48]
    assert engine.tokens("second") == expected_output(prompt, 8)
    last = engine.outputs["second"][-1].delta
    assert last is not None and last.usage is not None
    assert last.usage.cached_tokens == 48


def test_a_prompt_of_whole_blocks_that_is_all_cached_still_computes_its_last_token() -> None:
    engine = Harness()
    prompt = [5] * 32
    for name in ("first", "second"):
        engine.add(name, prompt)
        engine.run()
    assert engine.tokens("second") == expected_output(prompt, 8)


def test_tenants_with_other_salts_share_nothing() -> None:
    engine = Harness()
    prompt = [7] * 40
    engine.add("one", prompt, salt=b"a")
    engine.run()
    engine.add("two", prompt, salt=b"b")
    engine.run()
    assert [event.hit_tokens for event in engine.events if isinstance(event, PrefixLookup)] == [0, 0]


def test_choices_wait_for_the_first_one_and_share_its_prompt() -> None:
    engine = Harness()
    prompt = [3] * 70
    engine.add("many", prompt, n=4)
    engine.run()
    steps = [event for event in engine.events if isinstance(event, StepCompleted)]
    # 70 for the first choice; 4 full blocks are shared, so 6 remain for each of the others
    assert sum(step.prefill_tokens for step in steps) == 70 + 3 * 6
    assert {tuple(engine.tokens("many", i)) for i in range(4)} == {tuple(expected_output(prompt, 8))}


def test_prefix_caching_can_be_switched_off() -> None:
    engine = Harness(enable_prefix_caching=False)
    for name in ("first", "second"):
        engine.add(name, [9] * 50, n=2)
        engine.run()
    assert all(event.hit_tokens == 0 for event in engine.events if isinstance(event, PrefixLookup))


def test_a_step_tells_what_its_kernels_counted() -> None:
    engine = Harness()
    engine.add("one", [1, 2, 3], max_tokens=4)
    engine.add("two", [4] * 50, max_tokens=4)
    engine.run()
    steps = [event for event in engine.events if isinstance(event, StepCompleted)]
    tokens = [step.prefill_tokens + step.decode_tokens for step in steps]
    assert [step.multiply_adds for step in steps] == [MULTIPLY_ADDS * count for count in tokens]
    assert [step.moved_bytes for step in steps] == [MOVED_BYTES if count else 0 for count in tokens]


def test_a_step_that_is_run_again_by_parts_counts_each() -> None:
    engine = Harness()
    engine.program.broken = {9}
    engine.add("good", [1, 2, 3], max_tokens=2)
    engine.add("bad", [9, 2, 3], max_tokens=2)
    engine.add("other", [4, 2, 3], max_tokens=2)
    engine.step()
    step = engine.of(StepCompleted)[-1]
    assert isinstance(step, StepCompleted)
    assert (step.moved_bytes, step.multiply_adds) == (2 * MOVED_BYTES, 6 * MULTIPLY_ADDS)


def test_decodes_go_first_and_long_prompts_fill_the_rest() -> None:
    engine = Harness(max_num_batched_tokens=16)
    engine.add("short", [1, 2, 3], max_tokens=30)
    engine.step()
    engine.add("long", [4] * 100, max_tokens=2)
    engine.step()
    step = engine.of(StepCompleted)[-1]
    assert isinstance(step, StepCompleted)
    assert (step.decode_tokens, step.prefill_tokens) == (1, 15)


def test_static_batching_lets_nobody_join_a_running_batch() -> None:
    engine = Harness(batching="static", max_num_seqs=2)
    for name in ("a", "b", "c"):
        engine.add(name, [1, 2, 3], max_tokens=3 if name == "a" else 6)
    running = []
    while engine.core.has_work:
        engine.step()
        running.append({seq.request.request_id for seq in engine.core.scheduler.running})
    assert {"c"} in running
    assert not any({"c", other} <= names for names in running for other in ("a", "b"))


def test_preemption_takes_tails_and_loses_only_them() -> None:
    # two sequences are expected to reach 5 blocks each and grow to 8
    engine = Harness(num_blocks=10)
    for name in ("a", "b"):
        engine.add(name, [1 if name == "a" else 2] * 2, max_tokens=120)
    engine.run()
    losses = [event for event in engine.events if isinstance(event, Preempted)]
    assert losses
    assert all(event.lost_tokens <= 16 * event.freed_blocks for event in losses)
    assert engine.tokens("b") == expected_output([2] * 2, 120)


def test_the_oldest_sequence_is_never_preempted() -> None:
    engine = Harness(num_blocks=20)
    for name in ("oldest", "x", "y", "z"):
        engine.add(name, [ord(name[0]) % 31 + 1] * 2, max_tokens=150)
    engine.run()
    assert engine.of(Preempted)
    assert "oldest" not in {event.request_id for event in engine.events if isinstance(event, Preempted)}


def test_what_can_never_fit_is_refused_and_what_just_fits_is_served() -> None:
    engine = Harness(num_blocks=4, max_model_len=1024)
    # 4 blocks of 16 hold 64 tokens; the newest token needs no place
    engine.add("fits", [1] * 60, max_tokens=5)
    with pytest.raises(ContextLengthExceeded, match="65 tokens"):
        engine.add("never", [1] * 60, max_tokens=6)
    engine.run()
    assert engine.tokens("fits") == expected_output([1] * 60, 5)


def test_without_max_tokens_the_answer_ends_with_the_context() -> None:
    engine = Harness(max_model_len=40)
    engine.add("open", [1] * 30, max_tokens=None)
    engine.run()
    assert len(engine.tokens("open")) == 10


@pytest.mark.parametrize(
    ("prompt", "sampling"),
    [
        ([], {}),
        ([32], {}),
        ([-1], {}),
        ([1], {"temperature": float("nan")}),
        ([1], {"top_p": 0.0}),
        ([1], {"n": 17}),
        ([1], {"stop_token_ids": (99,)}),
        ([1], {"logit_bias": {99: 1.0}}),
        ([1], {"min_tokens": 9, "max_tokens": 8}),
        ([1], {"stop": ("",)}),
    ],
)
def test_the_engine_itself_refuses_what_the_table_forbids(
    prompt: list[int], sampling: dict[str, Any]
) -> None:
    engine = Harness()
    with pytest.raises(InvalidRequest):
        engine.add("bad", prompt, b"", **sampling)
    assert not engine.core.has_work
    assert not engine.events


def test_an_abort_frees_everything_at_once() -> None:
    engine = Harness()
    engine.add("gone", [1] * 100, n=3, max_tokens=50)
    engine.add("stays", [2] * 20)
    for _ in range(4):
        engine.step()
    engine.core.abort("gone")
    engine.step()
    assert {seq.request.request_id for seq in engine.core.scheduler.running} == {"stays"}
    engine.run()
    assert engine.core.scheduler.pool.active == 0
    assert engine.tokens("stays") == expected_output([2] * 20, 8)


def test_a_request_that_breaks_the_model_fails_alone() -> None:
    engine = Harness()
    engine.program.broken.add(31)
    engine.add("good", [1, 2, 3])
    engine.add("bad", [31, 31])
    engine.add("also-good", [4, 5, 6])
    engine.run()
    assert engine.outputs["bad"][-1].error is not None
    assert engine.outputs["bad"][-1].error.code == "generation_failed"
    assert engine.tokens("good") == expected_output([1, 2, 3], 8)
    assert engine.tokens("also-good") == expected_output([4, 5, 6], 8)
    assert engine.core.scheduler.pool.active == 0


def test_a_request_with_corrupt_logits_fails_alone() -> None:
    engine = Harness()
    asked = {"good": [1, 2, 3], "bad": [30, 29]}
    engine.program.corrupt.add(30)
    for name, prompt in asked.items():
        engine.add(name, prompt, max_tokens=3)
    engine.run()
    assert engine.outputs["bad"][-1].error is not None
    assert engine.outputs["good"][-1].error is None
    assert engine.tokens("good") == expected_output(asked["good"], 3)


def test_a_passed_deadline_ends_the_request() -> None:
    from tokenmill.core.request import GenerateRequest, SamplingParams

    engine = Harness()
    engine.core.add(
        GenerateRequest(
            request_id="late", prompt_ids=(1,), sampling=SamplingParams(max_tokens=1000), deadline=0.05
        )
    )
    engine.outputs["late"] = []
    engine.run()
    error = engine.outputs["late"][-1].error
    assert error is not None
    assert (error.code, error.status) == ("timeout", 504)


def test_stop_strings_and_tokens_end_an_answer() -> None:
    prompt = [1, 2, 3]
    answer = expected_output(prompt, 8)
    letters = "".join(chr(64 + token) for token in answer)
    engine = Harness()
    engine.add("string", prompt, stop=(letters[2:4],))
    engine.add("token", prompt, stop_token_ids=(answer[3],))
    engine.run()
    first = letters.index(letters[2:4])
    assert engine.text("string") == letters[:first]
    last = engine.outputs["string"][-1].delta
    assert last is not None
    assert (last.finish_reason, last.stop_reason) == ("stop", letters[2:4])
    end = answer.index(answer[3])
    assert engine.text("token") == letters[:end]
    last = engine.outputs["token"][-1].delta
    assert last is not None and last.usage is not None
    assert (last.stop_reason, last.usage.completion_tokens) == (answer[3], end + 1)


def test_min_tokens_holds_ends_back() -> None:
    prompt = [1, 2, 3]
    answer = expected_output(prompt, 8)
    engine = Harness()
    engine.add("held", prompt, stop=(chr(64 + answer[0]),), min_tokens=4)
    engine.run()
    assert len(engine.tokens("held")) >= 4


def test_the_books_of_events_balance() -> None:
    engine = Harness(num_blocks=16)
    engine.program.broken.add(31)
    for name, prompt in prompts(20, seed=3).items():
        engine.add(name, prompt, max_tokens=6)
    for _ in range(3):
        engine.step()
    engine.core.abort("r19")
    engine.run()
    ended = [event for event in engine.events if isinstance(event, RequestEnded)]
    assert len(engine.of(RequestAccepted)) == 20 == len(ended)
    assert {event.request_id for event in ended} == {f"r{i}" for i in range(20)}
    sampled = sum(event.sampled_tokens for event in engine.events if isinstance(event, StepCompleted))
    delivered = sum(len(engine.tokens(f"r{i}")) for i in range(20))
    assert sampled == delivered
    last = engine.of(StepCompleted)[-1]
    assert isinstance(last, StepCompleted)
    assert (last.running, last.waiting, last.kv_blocks_active) == (0, 0, 0)


def test_an_older_preempted_sequence_never_stands_in_the_way_for_ever() -> None:
    # A younger sequence runs and lacks blocks that an older one kept through its preemption.
    chance = random.Random(0)
    for case in range(400):
        engine = Harness(num_blocks=15, batching=chance.choice(["continuous", "static"]))
        for _ in range(5):
            engine.core.scheduler.learn(200)
        asked = {f"r{i}": ([i + 1] * chance.randint(1, 140), chance.randint(1, 100)) for i in range(4)}
        for name, (prompt, output) in asked.items():
            engine.add(name, prompt, max_tokens=output)
        engine.run(limit=2000)
        for name, (prompt, output) in asked.items():
            assert engine.tokens(name) == expected_output(prompt, output), case


def test_every_step_with_work_gets_something_done() -> None:
    engine = Harness(num_blocks=12, max_num_batched_tokens=16)
    for name, prompt in prompts(12, seed=5).items():
        engine.add(name, prompt, max_tokens=60)
    while engine.core.has_work:
        engine.step()
        assert engine.core.progressed


def test_shared_blocks_are_given_back_by_few_and_told_once() -> None:
    engine = Harness(num_blocks=17)
    engine.add("older", [1] * 20, max_tokens=120)
    engine.add("many", [2] * 100, max_tokens=60, n=3)
    while engine.core.has_work:
        told = len(engine.of(Preempted))
        engine.step()
        names = [event.request_id for event in engine.of(Preempted)[told:] if isinstance(event, Preempted)]
        assert len(names) <= 3
    losses = [event for event in engine.events if isinstance(event, Preempted)]
    steps = [event for event in engine.events if isinstance(event, StepCompleted)]
    assert sum(step.recomputed_tokens for step in steps) <= sum(event.lost_tokens for event in losses)
    for index in range(3):
        assert engine.tokens("many", index) == expected_output([2] * 100, 60)


def test_prompt_tokens_are_counted_once_whatever_is_preempted() -> None:
    engine = Harness(num_blocks=10, enable_prefix_caching=False)
    for name in ("a", "b", "c"):
        engine.add(name, [ord(name) % 31] * 20, max_tokens=100)
    engine.run()
    assert engine.of(Preempted)
    steps = [event for event in engine.events if isinstance(event, StepCompleted)]
    assert sum(step.prefill_tokens for step in steps) == 60
    # the last token of each answer is never computed
    assert sum(step.decode_tokens for step in steps) == 3 * 99


def test_a_static_batch_is_formed_beyond_the_token_budget_of_its_first_step() -> None:
    engine = Harness(num_blocks=64, batching="static", max_num_batched_tokens=32)
    for i in range(6):
        engine.add(f"r{i}", [i + 1] * 60, max_tokens=4)
    engine.step()
    assert len(engine.core.scheduler.running) == 6
    engine.run()


def test_a_broken_request_leaves_nothing_to_be_found_or_met_as_padding() -> None:
    engine = Harness()
    engine.program.corrupt.add(30)
    engine.add("bad", [30] * 40, max_tokens=30)
    engine.run()
    assert engine.core.scheduler.pool.cached == 0
    assert not (engine.program._stored >= 0).any()


@pytest.mark.parametrize(
    "sampling",
    [{"stop": "END"}, {"n": 2.0}, {"logit_bias": {"5": 1.0}}, {"top_k": 1.0}, {"max_tokens": True}],
)
def test_parameters_of_the_wrong_type_are_refused(sampling: dict[str, Any]) -> None:
    engine = Harness()
    with pytest.raises(InvalidRequest):
        engine.add("bad", [1, 2], b"", **sampling)
    with pytest.raises(InvalidRequest):
        engine.add("bad", [1, "x"])  # type: ignore[list-item]  # what a caller without types may do


def test_ignoring_the_end_also_holds_before_min_tokens() -> None:
    engine = Harness()
    engine.add("r", [1], ignore_eos=True, min_tokens=3, logit_bias={0: 100.0})
    engine.run()
    assert engine.tokens("r") == [0] * 8
