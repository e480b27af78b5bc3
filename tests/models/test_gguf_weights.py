"""GGUF tensors under their Hugging Face names: same names, same rows, same numbers as transformers loads."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from support.model_files import (
    ARRAY,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    KV_HEADS,
    STRING,
    U32,
    VOCAB,
    Array,
    gguf_tensors,
    write_gguf,
)
from tokenmill.models import stored_weights
from tokenmill.models.formats import FORMATS
from tokenmill.models.gguf_weights import canonical_name
from tokenmill.models.source import open_model


def load_all(path: Path, dtype: torch.dtype = torch.float32) -> dict[str, torch.Tensor]:
    weights = open_model(path).weights
    loaded = {name: weights.load(name, dtype) for name in weights.tensors}
    weights.close()
    return loaded


@pytest.mark.parametrize("head", [True, False], ids=["head", "tied"])
def test_every_tensor_is_what_transformers_loads_from_the_same_file(tmp_path: Path, head: bool) -> None:
    tensors = gguf_tensors()
    if not head:
        del tensors["output.weight"]
    blocks = {"blk.0.attn_q.weight": "Q4_0", "blk.1.attn_k.weight": "Q8_0", "blk.1.ffn_down.weight": "Q5_1"}
    # transformers wants a whole vocabulary to open a file.
    vocabulary = {
        "general.name": (STRING, "small"),
        "tokenizer.ggml.model": (STRING, "gpt2"),
        "tokenizer.ggml.tokens": (ARRAY, [f"w{n}" for n in range(VOCAB)]),
        "tokenizer.ggml.token_type": (ARRAY, [1] * VOCAB),
        "tokenizer.ggml.merges": (ARRAY, ["w 1"]),
    }
    path = write_gguf(tmp_path / "small.gguf", tensors, vocabulary, blocks)
    settings = load_gguf_checkpoint(path)["config"]
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    oracle = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    loaded = load_all(path)
    assert set(loaded) == set(oracle)
    for name, values in loaded.items():
        torch.testing.assert_close(values, oracle[name], rtol=0, atol=0, msg=name)


def paired(rows: Array, heads: int) -> Array:
    """What llama.cpp's converter does to the rows of q and k: halves become neighbours."""
    shape = rows.shape
    swapped: Array = rows.reshape(heads, 2, shape[0] // heads // 2, *shape[1:]).swapaxes(1, 2).reshape(shape)
    return swapped


@pytest.mark.parametrize("chunk", [1, 100, 1 << 20])
def test_rows_and_biases_of_q_and_k_return_to_halves_in_chunks_of_any_size(
    tmp_path: Path, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stored_weights, "_CHUNK", chunk)
    plain = gguf_tensors(bias=True)
    stored = dict(plain)
    for name in plain:
        if ".attn_q." in name:
            stored[name] = paired(plain[name], HEADS)
        elif ".attn_k." in name:
            stored[name] = paired(plain[name], KV_HEADS)
    loaded = load_all(write_gguf(tmp_path / "small.gguf", stored))
    assert len(loaded) == len(plain)
    for name, values in plain.items():
        canonical = canonical_name(name)
        assert canonical is not None
        np.testing.assert_array_equal(loaded[canonical].numpy(), values, err_msg=name)


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("token_embd.weight", "model.embed_tokens.weight"),
        ("output_norm.weight", "model.norm.weight"),
        ("blk.17.ffn_gate.weight", "model.layers.17.mlp.gate_proj.weight"),
        ("blk.0.attn_q.bias", "model.layers.0.self_attn.q_proj.bias"),
        ("blk.01.attn_q.weight", None),
        ("blk.0.attn_rot_embd.weight", None),
        ("blk.0.ffn_gate_exps.weight", None),
        ("blk.٣.attn_q.weight", None),
        ("rope_freqs.weight", None),
        ("anything", None),
    ],
)
def test_names_map_one_to_one_or_not_at_all(name: str, expected: str | None) -> None:
    assert canonical_name(name) == expected


def test_loaded_tensors_own_their_memory_and_outlive_the_file(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "small.gguf")
    weights = open_model(path).weights
    first = weights.load("model.norm.weight", torch.float32)
    kept = first.clone()
    first += 1
    torch.testing.assert_close(weights.load("model.norm.weight", torch.float32), kept)
    weights.close()
    path.write_bytes(bytes(path.stat().st_size))
    torch.testing.assert_close(first, kept + 1)


@pytest.mark.parametrize("kind", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "F16", "BF16"])
def test_each_format_loads_through_a_file(tmp_path: Path, kind: str) -> None:
    tensors = gguf_tensors()
    path = write_gguf(tmp_path / "small.gguf", tensors, quantize={"blk.0.ffn_up.weight": kind})
    source = open_model(path)
    info = source.weights.tensors["model.layers.0.mlp.up_proj.weight"]
    assert (info.format, info.shape) == (kind, (96, HIDDEN))
    values = source.weights.load(info.name, torch.float32).numpy()
    number = gguf.GGMLQuantizationType[kind]
    expected = gguf.quants.dequantize(gguf.quants.quantize(tensors["blk.0.ffn_up.weight"], number), number)
    np.testing.assert_array_equal(values, expected.astype(np.float32))
    source.weights.close()


def test_k_quants_load_through_a_file(tmp_path: Path) -> None:
    """Rows of 256 numbers, as these formats need; the bytes are made here, gguf cannot quantize to them."""
    width = 256
    sizes = {
        "llama.block_count": (U32, 1),
        "llama.embedding_length": (U32, width),
        "llama.feed_forward_length": (U32, width),
        "llama.attention.head_count": (U32, width // HEAD_DIM),
        "llama.attention.head_count_kv": (U32, width // HEAD_DIM),
    }
    square = np.zeros((width, width), np.float32)
    names = ("token_embd", *(f"blk.0.{n}" for n in ("attn_q", "attn_k", "attn_v", "attn_output")))
    tensors: dict[str, Array] = {f"{name}.weight": square for name in names}
    tensors |= {f"{name}.weight": square[0] for name in ("blk.0.attn_norm", "blk.0.ffn_norm", "output_norm")}
    stored: dict[str, tuple[str, Array]] = {}
    random = np.random.default_rng(5)
    for name, kind, scales_at in (("up", "Q4_K", (0, 2)), ("gate", "Q5_K", (0, 2)), ("down", "Q6_K", (208,))):
        blocks = random.integers(0, 256, (width, FORMATS[kind].block_bytes), dtype=np.uint8)
        for at in scales_at:
            blocks[:, at : at + 2] = random.standard_normal((width, 1)).astype(np.float16).view(np.uint8)
        stored[f"blk.0.ffn_{name}.weight"] = (kind, blocks)
    loaded = load_all(write_gguf(tmp_path / "k.gguf", tensors, sizes, stored=stored))
    for name, (kind, blocks) in stored.items():
        expected = gguf.quants.dequantize(blocks, gguf.GGMLQuantizationType[kind])
        np.testing.assert_array_equal(loaded[str(canonical_name(name))].numpy(), expected, err_msg=name)
