import itertools

import pytest

from tokenmill.bench.distribution import parse
from tokenmill.bench.workload import Item, Workload
from tokenmill.core.errors import ConfigError


def first(workload: Workload, count: int) -> list[Item]:
    return list(itertools.islice(workload.items(), count))


def test_a_seed_gives_the_same_items_in_any_order() -> None:
    workload = Workload(parse("uniform:10:1500"), parse("uniform:1:200"), seed=5)
    assert first(workload, 20)[13] == workload.item(13)
    assert first(workload, 20) == first(
        Workload(parse("uniform:10:1500"), parse("uniform:1:200"), seed=5), 20
    )
    assert first(workload, 5) != first(Workload(parse("uniform:10:1500"), parse("uniform:1:200"), seed=6), 5)


def test_lengths_are_those_asked_for() -> None:
    text, ids = (
        first(Workload(parse("uniform:10:40"), parse("uniform:1:5"), token_ids=as_ids), 400)
        for as_ids in (False, True)
    )
    words = [len(item.prompt.split()) for item in text if isinstance(item.prompt, str)]
    tokens = [len(item.prompt) for item in ids]
    assert words == tokens
    assert (min(words), max(words)) == (10, 40)
    assert {item.max_tokens for item in text} == {1, 2, 3, 4, 5}


def test_prompts_differ_from_each_other() -> None:
    assert len({str(item.prompt) for item in first(Workload(parse(16)), 500)}) == 500


def test_the_shared_share_of_every_prompt_is_the_same_text() -> None:
    prompts = [item.prompt for item in first(Workload(parse(100), token_ids=True, shared_prefix=0.6), 10)]
    assert len({tuple(prompt[:60]) for prompt in prompts}) == 1
    assert len({tuple(prompt[60:61]) for prompt in prompts}) > 1


def test_prompts_of_different_lengths_share_as_much_as_the_shorter_one_has() -> None:
    prompts = [
        item.prompt
        for item in first(Workload(parse("uniform:20:200"), token_ids=True, shared_prefix=0.5), 10)
    ]
    short, long = min(prompts, key=len), max(prompts, key=len)
    assert len(short) < len(long)
    shared = round(len(short) * 0.5)
    assert short[:shared] == long[:shared]


def test_token_ids_stay_in_the_vocabulary() -> None:
    items = first(Workload(parse(50), token_ids=True, vocab_size=120), 50)
    used = {token for item in items for token in item.prompt}
    assert used == set(range(100, 120))


def test_given_prompts_are_used_in_turn() -> None:
    items = first(Workload(prompts=("a", "b"), output_tokens=parse(3)), 3)
    assert [(item.prompt, item.max_tokens) for item in items] == [("a", 3), ("b", 3), ("a", 3)]


@pytest.mark.parametrize("wrong", [{"shared_prefix": 1.5}, {"vocab_size": 100}])
def test_what_cannot_be_made_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match=next(iter(wrong))):
        Workload(**wrong)  # type: ignore[arg-type]  # one numeric field each
