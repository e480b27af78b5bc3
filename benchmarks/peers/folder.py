"""A GGUF file written again as a folder in Hugging Face layout, in BF16."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tokenmill.models.gguf_tokenizer import read_gguf
from tokenmill.models.source import ModelSource, open_model


def write_folder(gguf: Path, folder: Path) -> None:
    """Writes weights, config.json and tokenizer; `folder` appears when it is whole.

    Raises:
        ValueError: a model other than Llama or Qwen3 with layers that are all alike.
    """
    source = open_model(gguf)
    try:
        metadata = source.tokenizer_files.gguf
        if metadata is None:
            raise ValueError(f"{gguf.name} holds no tokenizer")
        config = config_of(source)
        fresh = folder.with_name(folder.name + ".new")
        fresh.mkdir(parents=True, exist_ok=True)
        tensors = {name: source.weights.load(name, torch.bfloat16) for name in source.weights.tensors}
        safetensors.torch.save_file(tensors, fresh / "model.safetensors", metadata={"format": "pt"})
    finally:
        source.weights.close()
    backend = read_gguf(metadata).backend
    backend.save(str(fresh / "tokenizer.json"))
    (fresh / "config.json").write_text(json.dumps(config))
    (fresh / "tokenizer_config.json").write_text(
        json.dumps(
            {
                "tokenizer_class": "PreTrainedTokenizerFast",
                "bos_token": backend.id_to_token(config["bos_token_id"]),
                "eos_token": backend.id_to_token(config["eos_token_id"]),
            }
        )
    )
    fresh.rename(folder)


def config_of(source: ModelSource) -> dict[str, Any]:
    """config.json of a model. Raises ValueError as `write_folder`."""
    spec, layer = source.spec, source.spec.layers[0]
    plain = not (layer.qkv_bias or layer.out_bias or layer.mlp_bias or layer.post_norms or layer.experts)
    if any(other != layer for other in spec.layers) or not plain or layer.rope.kind != "default":
        raise ValueError(f"{source.name} is neither a plain Llama nor a plain Qwen3")
    family, model_type = ("Qwen3", "qwen3") if layer.qk_norm else ("Llama", "llama")
    return {
        "architectures": [f"{family}ForCausalLM"],
        "model_type": model_type,
        "dtype": "bfloat16",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden,
        "hidden_act": "silu",
        "intermediate_size": layer.intermediate,
        "num_hidden_layers": len(spec.layers),
        "num_attention_heads": layer.heads,
        "num_key_value_heads": layer.kv_heads,
        "head_dim": layer.head_dim,
        "max_position_embeddings": spec.max_position,
        "rms_norm_eps": spec.norm_eps,
        "rope_theta": layer.rope.theta,
        "tie_word_embeddings": spec.tied_embeddings,
        "bos_token_id": spec.bos_id,
        "eos_token_id": spec.eos_ids[0],
    }
