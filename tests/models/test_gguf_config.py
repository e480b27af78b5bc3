"""GGUF metadata to a model: what is read, what is assumed, what is refused."""

from __future__ import annotations

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
        (np.ones(4, np.float32), "must hold 8 numbers above 0"),
        (np.array([1] * 7 + [0], np.float32), "must hold 8 numbers above 0"),
        (np.array([1] * 7 + [np.nan], np.float32), "must hold 8 numbers above 0"),
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


def test_the_spelling_of_an_end_is_text_unless_the_file_marks_it_as_control(tmp_path: Path) -> None:
    assert spec(tmp_path, vocabulary({2})).eos_ids == (2,)
    assert spec(tmp_path, {**vocabulary(set()), "tokenizer.ggml.eos_token_id": None}).eos_ids == ()


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
    "epsilon of nothing": ({"llama.attention.layer_norm_rms_epsilon": (F32, 0.0)}, "a number above 0"),
    "theta of no number": ({"llama.rope.freq_base": (F32, float("nan"))}, "freq_base is nan"),
    "theta without end": ({"llama.rope.freq_base": (F32, float("inf"))}, "freq_base is inf"),
    "yarn": (
        {"llama.rope.scaling.type": (STRING, "yarn")},
        "scaling.type is 'yarn'; it must be none or linear",
    ),
    "linear without factor": ({"llama.rope.scaling.type": (STRING, "linear")}, "scaling.factor is missing"),
    "experts": ({"llama.expert_count": (U32, 8)}, "mixtures of experts are not supported"),
    "end beyond the vocabulary": (
        {"tokenizer.ggml.eos_token_id": (U32, VOCAB)},
        f"eos_token_id is {VOCAB}; it must be token ids below {VOCAB}",
    ),
}


@pytest.mark.parametrize("name", BAD_METADATA)
def test_metadata_that_cannot_be_used_is_refused_by_key(name: str, tmp_path: Path) -> None:
    metadata, message = BAD_METADATA[name]
    with pytest.raises(ModelFileError, match=f"^small.gguf: .*{message}"):
        spec(tmp_path, metadata)


def test_a_number_only_doubles_hold_is_kept(tmp_path: Path) -> None:
    assert spec(tmp_path, {"llama.rope.freq_base": (F64, 1e300)}).layers[0].rope.theta == 1e300


def test_another_architecture_is_refused_with_what_is_supported(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "other.gguf", architecture="gpt-neox")
    with pytest.raises(ModelFileError, match="architecture 'gpt-neox' is not supported; supported is llama"):
        open_model(path)
