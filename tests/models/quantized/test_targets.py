"""Lists of modules mean what compressed-tensors makes of them, and cost little whatever is written in them."""

from __future__ import annotations

import time

import pytest
from compressed_tensors.utils.match import match_name

from tokenmill.core.errors import ModelFileError
from tokenmill.models.quantized.targets import Targets

MODULES = [
    "lm_head",
    "model.embed_tokens",
    "model.layers.0.self_attn.q_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.11.mlp.gate_proj",
    "model.layers.1.mlp.gate",
    "model.layers.1.mlp.experts.7.down_proj",
    "vision_tower.blocks.0.qkv",
]
ENTRIES = [
    "lm_head",
    "model.layers.1.mlp.gate",
    "re:.*lm_head",
    "re:lm",
    "re:head",
    r"re:.*mlp\.gate$",
    "re:.*gate",
    r"re:model\.layers\.(0|1)\..*",
    r"re:.*experts\.\d+\.(up|down)_proj",
    "re:vision_tower.*|.*q_proj",
    "re:^model.layers.1.",
    "re:",
]


@pytest.mark.parametrize("entry", ENTRIES)
def test_names_and_patterns_fit_as_in_the_package(entry: str) -> None:
    targets = Targets("ignore", [entry])
    fits = {module: match_name(module, entry) for module in MODULES}
    assert {module: targets.specificity(module) > 1 for module in MODULES} == fits


def test_a_name_says_more_than_a_pattern_and_that_more_than_a_class() -> None:
    targets = Targets("targets", ["Linear", "re:.*q_proj", "model.layers.1.self_attn.q_proj"])
    assert [targets.specificity(module) for module in MODULES] == [1, 0, 2, 3, 1, 1, 1, 1]
    assert Targets("targets", ["Embedding"]).specificity("model.embed_tokens") == 1


@pytest.mark.parametrize("pattern", [r"(a+)+$", r"(a|a)*$", r"(.*a){20}$", r"(a?){200}b"])
def test_patterns_that_backtrack_without_end_do_not(pattern: str) -> None:
    targets = Targets("ignore", ["re:" + pattern])
    start = time.process_time()
    targets.specificity("a" * 4096 + "!")
    assert time.process_time() - start < 1


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        (["re:("], r"ignore: the pattern '\(' cannot be used"),
        (["re:(?!.*q_proj)"], "cannot be used"),
        ([r"re:(a)\1"], "cannot be used"),
        (["re:((a{1000}){1000}){1000}"], "cannot be used"),
        (["re:" + "a" * 1025], "a pattern of 1025 characters; at most 1024 are allowed"),
        (["re:a"] * 257, "257 of them patterns; at most 65536 and 256 are allowed"),
        (["a"] * 65537, "ignore has 65537 entries"),
    ],
    ids=["syntax", "look-around", "back reference", "repeats", "long", "many patterns", "many"],
)
def test_lists_that_cannot_be_used_are_refused(entries: list[str], message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        Targets("ignore", entries)
