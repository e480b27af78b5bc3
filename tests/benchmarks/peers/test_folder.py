from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import transformers

from benchmarks.peers.folder import write_folder
from tokenmill.models.source import open_model


def test_the_folder_is_the_same_model_in_bfloat16(small_model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bf16"
    write_folder(small_model_path, folder)
    file, written = open_model(small_model_path), open_model(folder)
    try:
        spec = replace(written.spec, eos_ids=file.spec.eos_ids)
        assert replace(spec, layers=()) == replace(file.spec, layers=())
        assert [layer.rope.theta for layer in spec.layers] == [layer.rope.theta for layer in file.spec.layers]
        assert {info.format for info in written.weights.tensors.values()} == {"BF16"}
        name = "model.layers.7.self_attn.k_proj.weight"
        assert torch.equal(
            written.weights.load(name, torch.bfloat16), file.weights.load(name, torch.bfloat16)
        )
    finally:
        file.weights.close()
        written.weights.close()


def test_transformers_reads_its_tokenizer_and_configuration(small_model_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "bf16"
    write_folder(small_model_path, folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    assert tokenizer.decode(tokenizer("The capital of France is Paris.")["input_ids"]) == (
        "The capital of France is Paris."
    )
    config = transformers.AutoConfig.from_pretrained(folder)
    assert (config.model_type, config.num_hidden_layers, config.head_dim) == ("llama", 30, 64)
