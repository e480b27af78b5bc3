"""The table of families: complete, without contradictions, and found by every name."""

from __future__ import annotations

import pytest
import transformers

from tokenmill.core.errors import ModelFileError
from tokenmill.engine.models import BUILDERS
from tokenmill.models.families import FAMILIES, family_of_class, family_of_gguf


def test_every_family_has_a_builder_and_every_builder_a_family() -> None:
    assert {family.architecture for family in FAMILIES} == set(BUILDERS)


def test_no_name_belongs_to_two_families() -> None:
    for names in (
        [name for family in FAMILIES for name in family.classes],
        [name for family in FAMILIES for name in family.model_types],
        [(family.gguf, family.experts is not None) for family in FAMILIES if family.gguf],
    ):
        assert len(set(names)) == len(names)


def test_class_names_are_those_of_transformers() -> None:
    for family in FAMILIES:
        for name in family.classes:
            assert getattr(transformers, name).config_class.model_type in family.model_types


def test_every_class_has_its_headless_one() -> None:
    for family in FAMILIES:
        loaded = {getattr(transformers, name).base_model_prefix for name in family.classes}
        assert loaded == {"model"}
        assert any(name.endswith("Model") for name in family.classes), family.classes


def test_a_class_decides_before_a_model_type() -> None:
    assert family_of_class("Qwen3ForCausalLM", "llama").architecture == "qwen3"
    assert family_of_class("", "gemma3_text").architecture == "gemma3"


def test_an_unknown_class_is_refused_even_of_a_known_model_type() -> None:
    with pytest.raises(
        ModelFileError,
        match="architecture 'LlamaForTokenClassification' is not supported; supported are Llama",
    ):
        family_of_class("LlamaForTokenClassification", "llama")


def test_gguf_tells_mixtral_from_llama_by_its_experts() -> None:
    assert family_of_gguf("llama", experts=False, label="x.gguf").architecture == "llama"
    assert family_of_gguf("llama", experts=True, label="x.gguf").architecture == "mixtral"


@pytest.mark.parametrize(
    ("name", "experts", "message"),
    [
        (
            "rwkv6",
            False,
            "x.gguf: architecture 'rwkv6' is not supported; supported are llama, qwen2, qwen3, ",
        ),
        ("gemma3", True, "x.gguf: architecture 'gemma3' with experts is not supported"),
        ("qwen3moe", False, "x.gguf: architecture 'qwen3moe' without experts is not supported"),
    ],
)
def test_an_unknown_gguf_architecture_is_refused(name: str, experts: bool, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        family_of_gguf(name, experts=experts, label="x.gguf")
