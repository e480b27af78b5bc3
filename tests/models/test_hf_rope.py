"""Rotary embeddings read from a config.json: the same frequencies and amplitude as transformers computes."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import transformers
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from tokenmill.core.errors import ModelFileError
from tokenmill.models.families import Family, family_of_class
from tokenmill.models.fields import Fields
from tokenmill.models.hf_rope import read_rope, served_positions
from tokenmill.models.rope import inverse_frequencies
from tokenmill.models.spec import RopeSpec

HEAD_DIM = 32
SHORT = [1.0 + 0.1 * pair for pair in range(12)]
LONG = [2.0 + pair for pair in range(12)]


def read(
    scaling: dict[str, Any] | None, *, of: str = "LlamaForCausalLM", local: bool = False, **keys: Any
) -> RopeSpec:
    family = family_of_class(of, "")
    given = {"max_position_embeddings": 4096, "rope_parameters": scaling, **keys}
    config = Fields("config.json", given).filled(family.absent, nullable=())
    trained = config.integer("max_position_embeddings", 1, 1 << 30)
    return read_rope(config, family, HEAD_DIM, trained, local=local)


def oracle(scaling: dict[str, Any], context: int, **keys: Any) -> tuple[torch.Tensor, float]:
    config = transformers.LlamaConfig(
        hidden_size=HEAD_DIM * 4,
        num_attention_heads=4,
        head_dim=HEAD_DIM,
        rope_parameters=dict(scaling),
        **{"max_position_embeddings": 4096, **keys},
    )
    frequencies, amplitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](config, "cpu", seq_len=context)
    return frequencies.double(), amplitude


YARN = {"rope_type": "yarn", "rope_theta": 1e6, "factor": 4.0, "original_max_position_embeddings": 1024}
SCALED: dict[str, dict[str, Any]] = {
    "linear": {"rope_type": "linear", "rope_theta": 1e4, "factor": 3.0},
    "dynamic": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.5},
    "yarn": YARN,
    "yarn without original": {"rope_type": "yarn", "rope_theta": 1e4, "factor": 8.0},
    "yarn, not truncated": {**YARN, "truncate": False},
    "yarn, other turns": {**YARN, "beta_fast": 16.0, "beta_slow": 2.0},
    "yarn, all in one pair": {**YARN, "beta_fast": 4.0, "beta_slow": 4.0, "truncate": False},
    "yarn, amplitude": {**YARN, "attention_factor": 0.7},
    "yarn, mscales": {**YARN, "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.707},
    "yarn, one mscale": {**YARN, "mscale": 0.5},
    "yarn, no scaling": {**YARN, "factor": 1.0},
    "llama3": {
        "rope_type": "llama3",
        "rope_theta": 5e5,
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 1024,
    },
    "longrope": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "short_factor": [1.0 + 0.1 * pair for pair in range(16)],
        "long_factor": [2.0 + pair for pair in range(16)],
        "original_max_position_embeddings": 1024,
    },
    "longrope, factor": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "factor": 32.0,
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
        "original_max_position_embeddings": 2048,
    },
    "longrope, amplitude": {
        "rope_type": "longrope",
        "rope_theta": 1e4,
        "attention_factor": 1.3,
        "short_factor": [1.0] * 16,
        "long_factor": [2.0] * 16,
        "original_max_position_embeddings": 512,
    },
}


@pytest.mark.parametrize("context", [1, 512, 1024, 1025, 4096, 4097, 10000, 131072])
@pytest.mark.parametrize("name", SCALED)
def test_frequencies_and_amplitude_are_those_of_transformers(name: str, context: int) -> None:
    scaling = SCALED[name]
    rope = read(scaling)
    frequencies, amplitude = oracle(scaling, context)
    ours = torch.tensor(inverse_frequencies(rope, context), dtype=torch.float64)
    # transformers computes in float32: 2e-6 is a few of its last bits, through a power and a division.
    torch.testing.assert_close(ours, frequencies, rtol=2e-6, atol=0)
    assert rope.attention_factor == pytest.approx(amplitude, rel=1e-12)


def test_phi3_rotates_a_part_of_each_head_and_keeps_its_original_length_beside_the_scaling() -> None:
    keys: dict[str, Any] = {"max_position_embeddings": 4096, "original_max_position_embeddings": 512}
    scaling = {"type": "longrope", "short_factor": SHORT, "long_factor": LONG}
    config = transformers.Phi3Config(
        hidden_size=HEAD_DIM * 4,
        num_attention_heads=4,
        num_key_value_heads=4,
        partial_rotary_factor=0.75,
        rope_scaling=dict(scaling),
        **keys,
    )
    rope = read(
        None,
        of="Phi3ForCausalLM",
        rope_scaling=scaling,
        partial_rotary_factor=0.75,
        **keys,
    )
    assert rope.dim == 24
    for context in (512, 513):
        frequencies, amplitude = ROPE_INIT_FUNCTIONS["longrope"](config, "cpu", seq_len=context)
        ours = torch.tensor(inverse_frequencies(rope, context), dtype=torch.float64)
        torch.testing.assert_close(ours, frequencies.double(), rtol=2e-6, atol=0)
        assert rope.attention_factor == pytest.approx(amplitude)


@pytest.mark.parametrize("name", ["su", "yarn"])
def test_older_names_of_longrope_are_read_in_phi3(name: str) -> None:
    keys = {"short_factor": [1.0] * 16, "long_factor": [2.0] * 16}
    new = read({"rope_type": "longrope", **keys}, of="Phi3ForCausalLM")
    assert read(None, of="Phi3ForCausalLM", rope_scaling={"type": name, **keys}) == new


GEMMA = "Gemma3ForCausalLM"


def test_gemma_has_a_local_and_a_global_embedding_in_old_and_new_spelling() -> None:
    old = {"rope_theta": 1e6, "rope_local_base_freq": 2e4, "rope_scaling": {"type": "linear", "factor": 8.0}}
    new = {
        "full_attention": {"rope_type": "linear", "rope_theta": 1e6, "factor": 8.0},
        "sliding_attention": {"rope_type": "default", "rope_theta": 2e4},
    }
    for rope, local in (
        (RopeSpec(1e6, HEAD_DIM, "linear", 8.0), False),
        (RopeSpec(2e4, HEAD_DIM), True),
    ):
        assert read(None, of=GEMMA, local=local, **old) == read(new, of=GEMMA, local=local) == rope


def test_gemma_without_any_key_has_the_thetas_of_transformers() -> None:
    expected = transformers.Gemma3TextConfig().rope_parameters
    for local, kind in ((False, "full_attention"), (True, "sliding_attention")):
        assert read(None, of=GEMMA, local=local).theta == expected[kind]["rope_theta"]


def longest(rope: RopeSpec, of: str = "LlamaForCausalLM", trained: int = 4096) -> int:
    family: Family = family_of_class(of, "")
    return served_positions(rope, family, trained)


@pytest.mark.parametrize(
    ("name", "positions"),
    [
        ("linear", 12288),  # 3 x 4096
        ("dynamic", 10240),  # 2.5 x 4096
        ("yarn", 4096),  # 4 x 1024
        ("yarn without original", 32768),  # 8 x 4096
        ("yarn, no scaling", 4096),
        ("llama3", 4096),
        ("longrope", 4096),
    ],
)
def test_a_scaled_embedding_reaches_further_than_training_did(name: str, positions: int) -> None:
    assert longest(read(SCALED[name])) == positions


def test_gemma_counts_its_scaling_in() -> None:
    assert longest(RopeSpec(1e6, HEAD_DIM, "linear", 8.0), GEMMA) == 4096


def test_no_reach_is_beyond_the_bound() -> None:
    assert longest(RopeSpec(1e6, HEAD_DIM, "linear", 1e6), trained=1 << 30) == 1 << 30


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "kind": (
        {"rope_type": "proportional"},
        "rope type 'proportional' is not supported; supported are default, linear, dynamic, yarn, llama3, longrope",
    ),
    "no factor": ({"rope_type": "dynamic"}, "factor is missing; it must be a number from 1e-06 to 1e\\+06"),
    "factor": ({"rope_type": "linear", "factor": 1e300}, "factor is 1e\\+300"),
    "factor of text": ({"rope_type": "yarn", "factor": "4"}, "factor is '4'"),
    "turns of yarn": (
        {"rope_type": "yarn", "factor": 4, "beta_fast": 1e308},
        "beta_fast is 1e\\+308; it must be a number from 0.001 to 1000",
    ),
    "theta of yarn": ({"rope_type": "yarn", "factor": 4, "rope_theta": 1.0}, "rope_theta is 1.0; with yarn"),
    "short factors": (
        {"rope_type": "longrope", "short_factor": [1.0] * 15, "long_factor": [1.0] * 16},
        "short_factor is .*it must be a list of 16 numbers from 1e-06 to 1e",
    ),
    "long factors": (
        {"rope_type": "longrope", "short_factor": [1.0] * 16, "long_factor": [1.0] * 15 + [0]},
        "long_factor is .*it must be a list of 16 numbers from 1e-06 to 1e",
    ),
    "short factors next to 0": (
        {"rope_type": "longrope", "short_factor": [1.0] * 15 + [1e-320], "long_factor": [1.0] * 16},
        "short_factor is .*it must be a list of 16 numbers from 1e-06 to 1e",
    ),
    "amplitude": (
        {"rope_type": "yarn", "factor": 4, "attention_factor": 1e-45},
        "attention_factor is 1e-45; it must be a number from 1e-06 to 1e",
    ),
    "llama3": (
        {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1e-320, "high_freq_factor": 4},
        "low_freq_factor is .*it must be a number from 1e-06 to 1e",
    ),
    "layers": (
        {"full_attention": {"rope_type": "default"}},
        "rope_parameters is .*the same for all layers",
    ),
    "part of a head": ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5 is not supported"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_computed_is_refused_by_key(name: str) -> None:
    scaling, message = REFUSED[name]
    with pytest.raises(ModelFileError, match=f"^config.json.*{message}"):
        read(scaling)


@pytest.mark.parametrize("share", [0.1, 0.03, 1.5])
def test_a_rotated_part_is_even_and_within_the_head(share: float) -> None:
    with pytest.raises(
        ModelFileError, match=f"partial_rotary_factor is {share}; it must take an even number"
    ):
        read({"partial_rotary_factor": share}, of="Phi3ForCausalLM")


def test_two_rotated_components_cannot_be_dynamic() -> None:
    config = Fields("config.json", {"rope_theta": 1e4, "rope_scaling": {"type": "dynamic", "factor": 2}})
    with pytest.raises(ModelFileError, match="dynamic needs more than 2 rotated components"):
        read_rope(config, family_of_class("LlamaForCausalLM", ""), 2, 4096)
