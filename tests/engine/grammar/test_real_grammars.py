"""The real small model's output under grammars: it always matches, and nobody else notices."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import jsonschema
import pytest
import torch

from support.real_engine import RealModel, text, tokens
from tokenmill.core.events import Event, Preempted, RequestEnded
from tokenmill.core.request import Grammar, SamplingParams

PERSON = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 20},
        "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "items": {"type": "string", "maxLength": 8}, "maxItems": 3},
    },
    "required": ["name", "age"],
    "additionalProperties": False,
}
SCHEMAS: dict[str, dict[str, Any]] = {
    "object": PERSON,
    "enum": {"enum": ["red", "green", 3, None, {"deep": [1]}]},
    "const": {"const": {"fixed": "text", "list": [1, 2]}},
    "number": {"type": "number", "minimum": -1.5, "maximum": 2.25},
    "boolean": {"type": "boolean"},
    "array": {"type": "array", "items": {"type": "boolean"}, "minItems": 2, "maxItems": 4},
    "tuple": {
        "type": "array",
        "prefixItems": [{"type": "null"}, {"enum": ["x", "y"]}],
        "items": False,
        "minItems": 2,
    },
    "pattern": {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    "formats": {
        "type": "object",
        "properties": {"day": {"type": "string", "format": "date"}},
        "required": ["day"],
        "additionalProperties": False,
    },
    "anyOf": {
        "anyOf": [
            {
                "type": "object",
                "properties": {"a": {"type": "integer", "maximum": 99, "minimum": 0}},
                "required": ["a"],
                "additionalProperties": False,
            },
            {"type": "null"},
        ],
    },
    "ref": {
        "$defs": {
            "tree": {
                "type": "object",
                "properties": {
                    "leaf": {"enum": [0, 1]},
                    "next": {"$ref": "#/$defs/tree"},
                },
                "required": ["leaf"],
                "additionalProperties": False,
            }
        },
        "$ref": "#/$defs/tree",
    },
}


@pytest.fixture(scope="module")
def model(small_model_path: Path) -> Iterator[RealModel]:
    made = RealModel.load(small_model_path, torch.float32)
    yield made
    made.grammars.close()


@pytest.fixture(scope="module")
def prompt(model: RealModel) -> list[int]:
    return model.tokenizer.encode("Here is the answer as JSON: ", add_special=True)


def free(**fields: Any) -> SamplingParams:
    return SamplingParams(**{"temperature": 1.0, "max_tokens": 120, "seed": 1, **fields})


def under(kind: Literal["json_schema", "regex", "lark"], source: str, **fields: Any) -> SamplingParams:
    return free(grammar=Grammar(kind, source), **fields)


def reason(deltas: Any, index: int = 0) -> str | None:
    found: str | None = [d.finish_reason for d in deltas if d.index == index][-1]
    return found


def test_json_validates_against_its_schema(model: RealModel, prompt: list[int]) -> None:
    """Every schema at once, in one batch."""
    params = [under("json_schema", json.dumps(schema), seed=7, max_tokens=40) for schema in SCHEMAS.values()]
    finished = 0
    for schema, deltas in zip(SCHEMAS.values(), model.run([prompt] * len(params), params), strict=True):
        if reason(deltas) == "stop":
            finished += 1
            jsonschema.validate(json.loads(text(deltas)), schema)
    assert finished >= 0.7 * len(SCHEMAS)


@pytest.mark.parametrize(
    "regex", ["[a-f]{3}-[0-9]{2,5}", "(yes|no|maybe), (sir|madam)", "[^a-z]{5,9}x", "\\p{Lu}\\p{Ll}{2,12}"]
)
def test_a_regex_matches_the_whole_text(model: RealModel, prompt: list[int], regex: str) -> None:
    (deltas,) = model.run([prompt], under("regex", regex, n=2, max_tokens=16))
    plain = regex.replace("\\p{Lu}", "[A-ZÀ-ÞĀ-\U0010ffff]").replace("\\p{Ll}", "\\w")
    for index in range(2):
        if reason(deltas, index) == "stop":
            assert re.fullmatch(plain, text(deltas, index)), text(deltas, index)


def test_a_lark_grammar_matches_and_ends_by_itself(model: RealModel, prompt: list[int]) -> None:
    grammar = 'start: sum\nsum: NUMBER ("+" NUMBER){1,3} "="\nNUMBER: /[1-9][0-9]?/\n'
    (deltas,) = model.run([prompt], under("lark", grammar, n=3))
    for index in range(3):
        assert re.fullmatch(r"[1-9]\d?(\+[1-9]\d?){1,3}=", text(deltas, index))
        assert reason(deltas, index) == "stop"
        assert tokens(deltas, index)[-1] not in model.tokenizer.eos_ids  # "=" can only be the end


def test_max_tokens_cuts_with_length(model: RealModel, prompt: list[int]) -> None:
    (deltas,) = model.run([prompt], under("json_schema", json.dumps(PERSON), max_tokens=4))
    assert reason(deltas) == "length"
    assert len(tokens(deltas)) == 4


def test_a_stop_string_ends_the_text_before_the_grammar_does(model: RealModel, prompt: list[int]) -> None:
    (deltas,) = model.run([prompt], under("regex", "[a-z]{5}:[a-z]{5}", stop=(":",)))
    assert re.fullmatch("[a-z]{5}", text(deltas))
    assert (reason(deltas), deltas[-1].stop_reason) == ("stop", ":")


def test_where_the_grammar_ends_min_tokens_and_ignore_eos_give_way(
    model: RealModel, prompt: list[int]
) -> None:
    (short,) = model.run([prompt], under("regex", "ab", min_tokens=50, ignore_eos=True))
    assert (text(short), reason(short)) == ("ab", "stop")
    (optional,) = model.run([prompt], under("regex", "a{2,8}", min_tokens=60, max_tokens=80))
    assert (text(optional), reason(optional)) == ("a" * 8, "stop")
    (ignoring,) = model.run([prompt], under("regex", "(ab){1,4}", ignore_eos=True))
    assert (text(ignoring), reason(ignoring)) == ("ab" * 4, "stop")


def test_logprobs_stay_those_of_the_model(model: RealModel, prompt: list[int]) -> None:
    (bound,) = model.run([prompt], under("regex", "zq", temperature=0, logprobs=2))
    (loose,) = model.run([prompt], free(temperature=0, logprobs=2, max_tokens=1))
    first, other = bound[0].logprobs[0], loose[0].logprobs[0]
    assert first.top == other.top
    assert first.logprob < other.top[-1].logprob


def test_neighbours_get_what_they_get_alone(model: RealModel, prompt: list[int]) -> None:
    texts = ["The capital of France is", "Once upon a time", "def fibonacci(n):"]
    prompts = [model.tokenizer.encode(words, add_special=True) for words in texts]
    greedy = free(temperature=0, max_tokens=10, ignore_eos=True, seed=None)
    alone = [tokens(model.run([ids], greedy)[0]) for ids in prompts]
    bound = [
        under("json_schema", json.dumps(PERSON), max_tokens=12),
        under("regex", "[a-z]{20}"),
        under("regex", "[0-9]"),
    ]
    mixed = model.run(
        [ids for pair in zip(prompts, [prompt] * 3, strict=True) for ids in pair],
        [params for pair in zip([greedy] * 3, bound, strict=True) for params in pair],
    )
    assert [tokens(deltas) for deltas in mixed[::2]] == alone


def test_preemption_and_the_prefix_cache_change_nothing(model: RealModel, prompt: list[int]) -> None:
    long = {"type": "string", "minLength": 150, "maxLength": 300}
    params = under("json_schema", json.dumps(long), n=2, max_tokens=28)
    calm = model.run([prompt] * 2, params, enable_prefix_caching=False)
    events: list[Event] = []
    tight = model.run([prompt] * 2, params, core=model.core(events, num_blocks=4))
    assert any(isinstance(event, Preempted) for event in events)
    for before, after in zip(calm, tight, strict=True):
        assert [tokens(before, index) for index in range(2)] == [tokens(after, index) for index in range(2)]


def test_a_grammar_that_fails_ends_its_request_alone(model: RealModel, prompt: list[int]) -> None:
    events: list[Event] = []
    core = model.core(events)
    hostile = under("lark", 'start: (("a" "b"?){0,3000}){0,3000}\n', n=2, ignore_eos=True)
    assert hostile.grammar is not None
    matchers = model.grammars.matchers(hostile.grammar, 2).result()
    core.add(request("hostile", prompt, hostile), matchers)
    core.add(request("other", prompt, free(max_tokens=20, ignore_eos=True)))
    errors: dict[str, Any] = {}
    while core.has_work:
        for output in core.step():
            if output.error is not None:
                errors[output.request_id] = output.error
        core.scheduler.check()
    assert {name: error.code for name, error in errors.items()} == {"hostile": "grammar_failed"}
    ended = {e.request_id: e for e in events if isinstance(e, RequestEnded)}
    assert (ended["hostile"].outcome, ended["other"].outcome) == ("failed", "finished")
    assert ended["other"].completion_tokens == 20


def request(name: str, prompt: list[int], params: SamplingParams) -> Any:
    from tokenmill.core.request import GenerateRequest

    return GenerateRequest(request_id=name, prompt_ids=tuple(prompt), sampling=params)
