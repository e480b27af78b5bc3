"""The engine as a library."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from support.tiny_models import save_tiny, save_tokenizer
from tokenmill import Engine, SamplingParams
from tokenmill.core.errors import (
    ConfigError,
    ContextLengthExceeded,
    InvalidRequest,
    NotSupported,
    UnknownModel,
)
from tokenmill.core.request import Grammar

PARAMS = SamplingParams(temperature=0, max_tokens=5, ignore_eos=True)


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Engine]:
    folder: Path = tmp_path_factory.mktemp("tiny")
    save_tiny("llama", folder)
    save_tokenizer(folder)
    with Engine(str(folder), dtype="float32", num_kv_blocks=32) as made:
        yield made


def test_texts_and_token_lists_are_completed_in_order(engine: Engine) -> None:
    ids = engine.worker.tokenizer.encode("hello", add_special=True)
    by_text, other, by_ids = (
        engine.generate(prompts, PARAMS, progress=False) for prompts in ("hello", ["the world"], [ids])
    )
    both = engine.generate(["hello", "the world"], PARAMS, progress=False)
    assert [done.text for done in both] == [by_text[0].text, other[0].text]
    assert by_ids[0].text == by_text[0].text
    usage = both[0].choices[0].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (len(ids), 5)
    assert both[0].choices[0].finish_reason == "length"


def test_each_prompt_may_have_its_own_parameters(engine: Engine) -> None:
    params = [PARAMS, SamplingParams(temperature=0, max_tokens=2, ignore_eos=True, n=2)]
    first, second = engine.generate(["hello", "hello"], params, progress=False)
    assert [len(choice.token_ids) for choice in (*first.choices, *second.choices)] == [5, 2, 2]
    with pytest.raises(InvalidRequest, match="2 prompts need 2"):
        engine.generate(["hello", "hello"], [PARAMS], progress=False)


def test_a_prompt_that_fails_carries_its_error_and_the_others_are_answered(engine: Engine) -> None:
    too_long = [5] * 2000
    bad, good = engine.generate([too_long, [5, 6]], PARAMS, progress=False)
    assert isinstance(bad.error, ContextLengthExceeded)
    assert good.error is None and len(good.choices[0].token_ids) == 5


def test_a_stream_says_the_same_and_may_be_left(engine: Engine) -> None:
    whole = engine.generate("hello", PARAMS, progress=False)[0].text
    assert "".join(delta.text for delta in engine.stream("hello", PARAMS)) == whole
    endless = engine.stream("hello", SamplingParams(temperature=0, max_tokens=900, ignore_eos=True))
    next(endless)
    endless.close()
    assert engine.generate("hello", PARAMS, progress=False)[0].text == whole
    assert engine.worker.load == (0, 0)


def test_a_conversation_goes_through_the_template(engine: Engine) -> None:
    prompt = engine.chat_prompt([{"role": "user", "content": "hello"}])
    assert engine.worker.tokenizer.decode(prompt).startswith("user\nhello")
    answer = engine.chat([{"role": "user", "content": "hello"}], PARAMS)
    assert answer.text == engine.generate([prompt], PARAMS, progress=False)[0].text


def test_flags_and_names_are_refused_as_on_the_command_line() -> None:
    with pytest.raises(ConfigError, match="max_num_seqs"):
        Engine(max_num_seq=3)
    with pytest.raises(ConfigError, match="tensor_parallel_size"):
        Engine(tensor_parallel_size=2)
    with pytest.raises(UnknownModel):
        Engine("smollm2-135m-instrukt")


def test_embeddings_need_to_know_how(engine: Engine) -> None:
    with pytest.raises(NotSupported, match="pooling to mean or last"):
        engine.embed("hello")


def test_embeddings_are_rows_of_unit_length_in_the_order_of_texts(tmp_path: Path) -> None:
    save_tiny("llama", tmp_path)
    save_tokenizer(tmp_path)
    with Engine(str(tmp_path), dtype="float32", num_kv_blocks=32, pooling="last") as engine:
        both = engine.embed(["hello", "the world"])
        assert both.shape == (2, 48)
        np.testing.assert_allclose(np.linalg.norm(both, axis=1), 1, rtol=1e-6)
        assert np.array_equal(engine.embed("the world"), both[1:])
        ids = engine.worker.tokenizer.encode("hello", add_special=True)
        assert np.array_equal(engine.embed([ids]), both[:1])
        assert engine.embed([]).shape == (0, 48)
        with pytest.raises(ContextLengthExceeded):
            engine.embed([[5] * 2000])


def test_log_probabilities_of_a_prompt_come_with_each_choice(engine: Engine) -> None:
    params = SamplingParams(max_tokens=0, prompt_logprobs=2, n=2)
    (done,) = engine.generate([[5, 6, 7]], params, progress=False)
    for choice in done.choices:
        assert choice.prompt_logprobs[0] is None
        assert [entry.token_id for entry in choice.prompt_logprobs if entry is not None] == [6, 7]
        assert (choice.token_ids, choice.finish_reason) == ([], "length")


def test_a_grammar_binds_its_prompt_and_a_bad_one_fails_alone(engine: Engine) -> None:
    bound = SamplingParams(temperature=1, seed=1, max_tokens=9, grammar=Grammar("regex", "(yes|no)"))
    broken = SamplingParams(max_tokens=9, grammar=Grammar("regex", "a(b"))
    good, bad, free = engine.generate(["a", "b", "c"], [bound, broken, PARAMS], progress=False)
    assert good.text in ("yes", "no")
    assert good.choices[0].finish_reason == "stop"
    assert bad.error is not None
    assert bad.error.code == "invalid_grammar"
    assert free.choices[0].finish_reason == "length"
