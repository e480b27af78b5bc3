"""GGUF metadata to a model: what is read, what is assumed, what is refused."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from support.model_files import (
    ARRAY,
    BOOL,
    F32,
    F64,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    STRING,
    U32,
    VOCAB,
    Array,
    gguf_tensors,
    write_gguf,
)
from tokenmill.core.errors import ModelFileError
from tokenmill.models.gguf_config import read_family, spec_of
from tokenmill.models.gguf_parts import open_parts
from tokenmill.models.rope import inverse_frequencies
from tokenmill.models.source import open_model
from tokenmill.models.spec import LayerSpec, ModelSpec, RopeSpec

LAYER = LayerSpec(
    heads=HEADS,
    kv_heads=KV_HEADS,
    head_dim=HEAD_DIM,
    intermediate=INTERMEDIATE,
    scale=HEAD_DIM**-0.5,
    rope=RopeSpec(theta=10000.0, dim=HEAD_DIM),
)


def spec(
    tmp_path: Path, metadata: dict[str, Any] | None = None, tensors: dict[str, Array] | None = None
) -> ModelSpec:
    source = open_model(write_gguf(tmp_path / "small.gguf", tensors, metadata))
    source.weights.close()
    return source.spec


def without(*names: str) -> dict[str, Array]:
    return {name: values for name, values in gguf_tensors().items() if name not in names}


def test_every_number_comes_from_the_metadata(tmp_path: Path) -> None:
    assert spec(tmp_path) == ModelSpec(
        architecture="llama",
        vocab_size=VOCAB,
        hidden=HIDDEN,
        layers=(LAYER,) * LAYERS,
        norm_eps=1e-5,  # stored as float32 it reads 9.999999747378752e-06
        max_position=128,
        tied_embeddings=False,
        bos_id=1,
        eos_ids=(2,),
    )


def test_absent_keys_have_the_defaults_of_the_format(tmp_path: Path) -> None:
    absent = ("attention.head_count_kv", "rope.dimension_count", "rope.freq_base", "vocab_size")
    tensors = gguf_tensors()
    for layer in range(LAYERS):
        tensors |= {f"blk.{layer}.attn_{n}.weight": np.zeros((HIDDEN, HIDDEN), np.float32) for n in "kv"}
    found = spec(tmp_path, {f"llama.{key}": None for key in absent}, tensors)
    assert {layer.kv_heads for layer in found.layers} == {HEADS}
    assert found.layers[0].rope == RopeSpec(theta=10000.0, dim=HEAD_DIM)


def test_an_explicit_head_size_need_not_be_width_by_heads(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    for layer in range(LAYERS):
        for name, heads in (("q", 4), ("k", 2), ("v", 2)):
            tensors[f"blk.{layer}.attn_{name}.weight"] = np.zeros((heads * 8, HIDDEN), np.float32)
        tensors[f"blk.{layer}.attn_output.weight"] = np.zeros((HIDDEN, 32), np.float32)
    sizes = {f"llama.{key}": (U32, 8) for key in ("attention.key_length", "attention.value_length")}
    found = spec(tmp_path, {**sizes, "llama.rope.dimension_count": (U32, 8)}, tensors)
    assert {(layer.head_dim, layer.scale) for layer in found.layers} == {(8, 8**-0.5)}


def test_layers_may_differ(tmp_path: Path) -> None:
    tensors = gguf_tensors()
    tensors["blk.1.attn_k.weight"] = tensors["blk.1.attn_v.weight"] = np.zeros((64, HIDDEN), np.float32)
    found = spec(tmp_path, {"llama.attention.head_count_kv": (ARRAY, [2, 4])}, tensors)
    assert [layer.kv_heads for layer in found.layers] == [2, 4]


def test_biases_are_those_the_file_holds(tmp_path: Path) -> None:
    layer = spec(tmp_path, tensors=gguf_tensors(bias=True)).layers[0]
    assert (layer.qkv_bias, layer.out_bias, layer.mlp_bias) == (True, True, True)


def test_embeddings_are_tied_where_the_file_has_no_head(tmp_path: Path) -> None:
    assert spec(tmp_path, tensors=without("output.weight")).tied_embeddings


@pytest.mark.parametrize(("window", "expected"), [(0, None), (32, 32), (128, None), (4096, None)])
def test_a_window_counts_only_when_shorter_than_the_context(
    tmp_path: Path, window: int, expected: int | None
) -> None:
    found = spec(tmp_path, {"llama.attention.sliding_window": (U32, window)})
    assert {layer.window for layer in found.layers} == {expected}


@pytest.mark.parametrize(
    "keys",
    [
        {"llama.rope.scaling.type": (STRING, "linear"), "llama.rope.scaling.factor": (F32, 4.0)},
        {"llama.rope.scale_linear": (F32, 4.0)},
    ],
    ids=["scaling.type", "scale_linear"],
)
def test_linear_scaling_is_read(tmp_path: Path, keys: dict[str, Any]) -> None:
    assert spec(tmp_path, keys).layers[0].rope == RopeSpec(10000.0, HEAD_DIM, kind="linear", factor=4.0)


def test_llama3_scaling_comes_as_a_tensor_of_factors(tmp_path: Path) -> None:
    factors = np.array([1, 1, 1.5, 2, 4, 8, 8, 8], np.float32)
    found = spec(tmp_path, tensors={**gguf_tensors(), "rope_freqs.weight": factors})
    assert found.layers[0].rope == RopeSpec(
        10000.0, HEAD_DIM, kind="factors", factors=tuple(factors.tolist())
    )


@pytest.mark.parametrize(
    ("factors", "message"),
    [
        (np.ones(4, np.float32), "must hold 8 numbers from 1e-06 to 1e"),
        (np.array([1] * 7 + [0], np.float32), "must hold 8 numbers from 1e-06 to 1e"),
        (np.array([1] * 7 + [1e-45], np.float32), "must hold 8 numbers from 1e-06 to 1e"),
        (np.array([1] * 7 + [np.nan], np.float32), "must hold 8 numbers from 1e-06 to 1e"),
        (np.ones((2, 4), np.float32), "must be a vector in F32"),
        (np.ones(8, np.float16), "must be a vector in F32"),
    ],
)
def test_factors_that_cannot_be_used_are_refused(tmp_path: Path, factors: Array, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        spec(tmp_path, tensors={**gguf_tensors(), "rope_freqs.weight": factors})


WORDS = ["<unk>", "<s>", "</s>", "<|im_end|>", "<|eot_id|>", "<|im_start|>", "hello", "<|eom_id|>"]
WORDS += [f"w{n}" for n in range(VOCAB - len(WORDS))]


def vocabulary(controls: set[int]) -> dict[str, Any]:
    types = [3 if number in controls else 1 for number in range(VOCAB)]
    return {"tokenizer.ggml.tokens": (ARRAY, WORDS), "tokenizer.ggml.token_type": (ARRAY, types)}


def test_every_end_stops_the_declared_one_first(tmp_path: Path) -> None:
    declared = {
        "tokenizer.ggml.eos_token_id": (U32, 20),
        "tokenizer.ggml.eot_token_id": (U32, 4),
        "tokenizer.ggml.eom_token_id": (U32, 7),
    }
    assert spec(tmp_path, {**declared, **vocabulary({1, 2, 3, 4, 5})}).eos_ids == (20, 4, 7, 2, 3)


def test_ends_of_turns_count_whatever_their_type_and_a_tag_of_html_where_it_is_a_control(
    tmp_path: Path,
) -> None:
    turns = (3, 4, 7)
    assert spec(tmp_path, vocabulary({2})).eos_ids == (2, *turns)
    untyped = {**vocabulary(set()), "tokenizer.ggml.eos_token_id": None}
    assert spec(tmp_path, untyped).eos_ids == turns
    assert spec(tmp_path, {**untyped, "tokenizer.ggml.token_type": None}).eos_ids == turns


BAD_METADATA: dict[str, tuple[dict[str, Any], str]] = {
    "no layers": ({"llama.block_count": None}, "llama.block_count is missing; it must be an integer"),
    "many layers": ({"llama.block_count": (U32, 2**31)}, "llama.block_count is 2147483648"),
    "no width": ({"llama.embedding_length": None}, "llama.embedding_length is missing"),
    "no context": ({"llama.context_length": (U32, 0)}, "llama.context_length is 0; it must be an integer"),
    "width of text": ({"llama.embedding_length": (STRING, "64")}, "llama.embedding_length is '64'"),
    "width of truth": ({"llama.embedding_length": (BOOL, True)}, "llama.embedding_length is True"),
    "no heads": ({"llama.attention.head_count": (U32, 0)}, "llama.attention.head_count is 0"),
    "heads of one layer": ({"llama.attention.head_count": (ARRAY, [4])}, "or 2 of them"),
    "heads of nothing": ({"llama.attention.head_count": (ARRAY, [4, 0])}, "or 2 of them"),
    "odd groups": ({"llama.attention.head_count_kv": (U32, 3)}, "a divisor of llama.attention.head_count"),
    "heads that do not divide": (
        {"llama.attention.head_count": (U32, 6)},
        "width 64 is no multiple of 6 heads",
    ),
    "odd heads": (
        {"llama.attention.key_length": (U32, 15), "llama.rope.dimension_count": None},
        "llama.attention.key_length is 15; it must be even",
    ),
    "two head sizes": ({"llama.attention.value_length": (U32, 8)}, "value_length is 8; it must be 16"),
    "half a rotation": ({"llama.rope.dimension_count": (U32, 8)}, "dimension_count is 8; it must be 16"),
    "no epsilon": ({"llama.attention.layer_norm_rms_epsilon": None}, "rms_epsilon is missing"),
    "epsilon of nothing": ({"llama.attention.layer_norm_rms_epsilon": (F32, 0.0)}, "from 1e-12 to 1"),
    "scores that vanish": ({"llama.attention.scale": (F32, 1e-45)}, "attention.scale is 1.4.*e-45"),
    "theta of no number": ({"llama.rope.freq_base": (F32, float("nan"))}, "freq_base is nan"),
    "theta without end": ({"llama.rope.freq_base": (F32, float("inf"))}, "freq_base is inf"),
    "another rope": ({"llama.rope.scaling.type": (STRING, "su")}, "one of none, linear, yarn, longrope"),
    "longrope without factors": ({"llama.rope.scaling.type": (STRING, "longrope")}, "needs tensors rope_f"),
    "yarn without factor": ({"llama.rope.scaling.type": (STRING, "yarn")}, "scaling.factor is missing"),
    "linear without factor": ({"llama.rope.scaling.type": (STRING, "linear")}, "scaling.factor is missing"),
    "experts of nobody": (
        {"llama.expert_count": (U32, 8)},
        "llama.expert_used_count is missing; it must be an integer from 1 to 8",
    ),
    "more experts than there are": (
        {"llama.expert_count": (U32, 8), "llama.expert_used_count": (U32, 9)},
        "expert_used_count is 9; it must be an integer from 1 to 8",
    ),
    "experts without end": ({"llama.expert_count": (U32, 2**31)}, "expert_count is 2147483648; it must be"),
    "experts in every layer without end": (
        {"llama.block_count": (U32, 4096), "llama.expert_count": (U32, 1024)},
        "llama.expert_count is 1024; it must be an integer from 1 to 32",  # 2^17 / 4096
    ),
    "sigmoid routing": ({"llama.expert_gating_func": (U32, 2)}, "expert_gating_func is 2; it must be 1"),
    "shared experts": ({"llama.expert_shared_count": (U32, 1)}, "expert_shared_count is 1; it must be 0"),
    "both directions": ({"llama.attention.causal": (BOOL, False)}, "causal is False; it must be True"),
    "capped logits": ({"llama.final_logit_softcapping": (F32, 30.0)}, "softcapping is 30.0; it must be 0"),
    "a pattern of numbers": (
        {
            "llama.attention.sliding_window": (U32, 8),
            "llama.attention.sliding_window_pattern": (ARRAY, [1, 0]),
        },
        "an integer, or 2 of true and false",
    ),
    "a pattern of one layer": (
        {
            "llama.attention.sliding_window": (U32, 8),
            "llama.attention.sliding_window_pattern": (ARRAY, [True]),
        },
        "an integer, or 2 of true and false",
    ),
    "end beyond the vocabulary": (
        {"tokenizer.ggml.eos_token_id": (U32, VOCAB)},
        f"eos_token_id is {VOCAB}; it must be token ids below {VOCAB}",
    ),
}


YARN = {
    "llama.rope.scaling.type": (STRING, "yarn"),
    "llama.rope.scaling.factor": (F32, 4.0),
    "llama.rope.scaling.original_context_length": (U32, 128),
}


def test_yarn_extends_the_context_and_scales_what_is_rotated(tmp_path: Path) -> None:
    found = spec(tmp_path, YARN)
    assert found.max_position == 512
    assert found.layers[0].rope == RopeSpec(
        10000.0,
        HEAD_DIM,
        "yarn",
        factor=4.0,
        original_max_position=128,
        attention_factor=0.1 * math.log(4) + 1,  # YaRN, section 3.4
    )


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"rope.scaling.yarn_attn_factor": 1.25}, 1.25),  # in place of what the factor gives
        ({"rope.scaling.attn_factor": 0.5}, 0.5 * (0.1 * math.log(4) + 1)),  # times what it gives
    ],
)
def test_factors_on_cosines_and_sines_of_yarn(
    tmp_path: Path, given: dict[str, float], expected: float
) -> None:
    keys = {f"llama.{key}": (F32, value) for key, value in given.items()}
    assert spec(tmp_path, {**YARN, **keys}).layers[0].rope.attention_factor == pytest.approx(expected)


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("yarn_ext_factor", 0.5, "must be 1.0; others are not supported"),
        ("yarn_log_multiplier", 0.1, "must be 0.0; others are not supported"),
        ("yarn_beta_fast", 1e-30, "a number from 0.001 to 1000"),
        ("yarn_beta_slow", 1e30, "a number from 0.001 to 1000"),
        ("factor", float("inf"), r"a number from 1e-06 to 1e\+06"),
    ],
)
def test_parameters_of_yarn_that_cannot_be_used_are_refused(
    tmp_path: Path, key: str, value: float, message: str
) -> None:
    with pytest.raises(ModelFileError, match=f"rope.scaling.{key} is .*{message}"):
        spec(tmp_path, {**YARN, f"llama.rope.scaling.{key}": (F32, value)})


@pytest.mark.parametrize("kind", ["none", "linear", "yarn"])
@pytest.mark.parametrize(
    "key",
    [
        "freq_base",
        "scaling.factor",
        "scaling.attn_factor",
        "scaling.yarn_attn_factor",
        "scaling.yarn_beta_fast",
    ],
)
@pytest.mark.parametrize(
    "value", [1e-300, 5e-324, 1e-6, 1.0, 1.0000001, 1e6, 1e300, -1.0, math.inf, math.nan]
)
def test_whatever_is_read_gives_frequencies(tmp_path: Path, kind: str, key: str, value: float) -> None:
    keys = {**YARN, "llama.rope.scaling.type": (STRING, kind), f"llama.rope.{key}": (F64, value)}
    with contextlib.suppress(ModelFileError):
        found = spec(tmp_path, keys)
        frequencies = inverse_frequencies(found.layers[0].rope, found.max_position)
        assert all(0 < frequency < math.inf for frequency in frequencies)


def test_yarn_needs_frequencies_that_fall(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"yarn needs a freq_base above 1, not 1\.0"):
        spec(tmp_path, {**YARN, "llama.rope.freq_base": (F32, 1.0)})


@pytest.mark.parametrize(("number", "pooling"), [(1, "mean"), (3, "last"), (0, None), (2, None), (4, None)])
def test_pooling_is_what_the_file_says_where_it_is_offered(
    tmp_path: Path, number: int, pooling: str | None
) -> None:
    assert spec(tmp_path, {"llama.pooling_type": (U32, number)}).pooling == pooling


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        (None, [8, 8]),
        ((U32, 2), [8, None]),
        ((U32, 1), [None, None]),
        ((ARRAY, [False, True]), [None, 8]),
    ],
)
def test_a_pattern_says_which_layers_have_the_window(
    tmp_path: Path, pattern: tuple[int, Any] | None, expected: list[int | None]
) -> None:
    keys = {"llama.attention.sliding_window": (U32, 8), "llama.attention.sliding_window_pattern": pattern}
    assert [layer.window for layer in spec(tmp_path, keys).layers] == expected


@pytest.mark.parametrize("name", BAD_METADATA)
def test_metadata_that_cannot_be_used_is_refused_by_key(name: str, tmp_path: Path) -> None:
    metadata, message = BAD_METADATA[name]
    with pytest.raises(ModelFileError, match=f"^small.gguf: .*{message}"):
        spec(tmp_path, metadata)


def test_a_number_only_doubles_hold_is_kept(tmp_path: Path) -> None:
    assert spec(tmp_path, {"llama.rope.freq_base": (F64, 1e300)}).layers[0].rope.theta == 1e300


def gemma(tmp_path: Path, layers: int, **bases: float) -> ModelSpec:
    """A header alone, with the bases of its rotary embeddings by key (two underscores are a dot)."""
    keys = {
        "gemma3.block_count": (U32, layers),
        "gemma3.context_length": (U32, 64),
        "gemma3.embedding_length": (U32, 96),
        "gemma3.feed_forward_length": (U32, 64),
        "gemma3.attention.head_count": (U32, 4),
        "gemma3.attention.key_length": (U32, 16),
        "gemma3.attention.layer_norm_rms_epsilon": (F32, 1e-6),
        "gemma3.attention.sliding_window": (U32, 8),
        **{f"gemma3.rope.{name.replace('__', '.')}": (F32, base) for name, base in bases.items()},
    }
    embedding = {"token_embd.weight": np.zeros((VOCAB, 96), np.float32)}
    path = write_gguf(tmp_path / "gemma.gguf", embedding, keys, None, "gemma3")
    header, files = open_parts(path)
    try:
        return spec_of(header, read_family(header, path.name), path.name)
    finally:
        files[0].close()


def bases_of(found: ModelSpec) -> tuple[set[float], set[float]]:
    """Of layers that look at the whole context, and of those with a window."""
    whole, local = (
        {layer.rope.theta for layer in found.layers if bool(layer.window) == windowed}
        for windowed in (False, True)
    )
    return whole, local


@pytest.mark.parametrize(("layers", "score_width"), [(26, 16), (62, 24)])
def test_gemma3_divides_scores_by_a_heads_size_but_at_27b_by_the_width_of_a_head(
    tmp_path: Path, layers: int, score_width: int
) -> None:
    found = gemma(tmp_path, layers, freq_base=1e6)
    assert {layer.scale for layer in found.layers} == {score_width**-0.5}
    assert [n for n, layer in enumerate(found.layers) if layer.window is None] == list(range(5, layers, 6))
    assert bases_of(found) == ({1e6}, {10000.0})
    assert found.embedding_scale == math.sqrt(96)


def test_gemma3_files_made_by_ollama_call_the_bases_otherwise(tmp_path: Path) -> None:
    assert bases_of(gemma(tmp_path, 6, global__freq_base=2e6)) == ({2e6}, {10000.0})
    assert bases_of(gemma(tmp_path, 6, global__freq_base=2e6, local__freq_base=3e4)) == ({2e6}, {3e4})
    assert bases_of(gemma(tmp_path, 6, freq_base=1e6, global__freq_base=2e6)) == ({1e6}, {10000.0})


def test_gemma3_without_a_base_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"gemma3\.rope\.freq_base is missing"):
        gemma(tmp_path, 6)


def test_another_architecture_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "other.gguf", architecture="gpt-neox")
    with pytest.raises(
        ModelFileError, match="architecture 'gpt-neox' is not supported; supported are llama,"
    ):
        open_model(path)
