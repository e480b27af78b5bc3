from __future__ import annotations

import math
from pathlib import Path

import pytest

from benchmarks.peers import shape
from benchmarks.peers.shape import write_qwen3_shape
from tokenmill.models.source import open_model
from tokenmill.models.tokenizer import load_tokenizer


def test_it_has_as_many_parameters_as_the_real_one() -> None:
    # Qwen3-0.6B's model card: 0.6 B, of them 0.44 B outside of the embeddings.
    sizes = {name: math.prod(size) for name, size in shape.tensors()}
    assert sum(sizes.values()) == 596_049_920
    assert sum(sizes.values()) - sizes["token_embd.weight"] == 440_467_456


def test_the_file_is_a_model_with_the_borrowed_tokenizer(
    small_model_path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {"LAYERS": 2, "HIDDEN": 64, "HEADS": 4, "KV_HEADS": 2, "HEAD_DIM": 32, "INTERMEDIATE": 96}
    for name, value in {**small, "VOCABULARY": 49_160}.items():
        monkeypatch.setattr(shape, name, value)
    path = tmp_path / "q4_1.gguf"
    write_qwen3_shape(path, tokenizer_of=small_model_path)
    made, lender = open_model(path), open_model(small_model_path)
    try:
        spec, layer = made.spec, made.spec.layers[0]
        assert (len(spec.layers), spec.hidden, spec.vocab_size) == (2, 64, 49_160)
        assert (layer.heads, layer.kv_heads, layer.head_dim, layer.intermediate) == (4, 2, 32, 96)
        assert (layer.qk_norm, layer.rope.theta, spec.tied_embeddings) == (True, 1e6, True)
        formats = {name: info.format for name, info in made.weights.tensors.items()}
        assert formats["model.layers.1.mlp.down_proj.weight"] == "Q4_1"
        text = "The capital of France is Paris."
        ids = [
            load_tokenizer(one.tokenizer_files, one.spec.vocab_size).encode(text, add_special=True)
            for one in (made, lender)
        ]
        assert ids[0] == ids[1]
    finally:
        made.weights.close()
        lender.weights.close()
