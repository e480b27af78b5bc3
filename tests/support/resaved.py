"""The real small model saved again as folders in Hugging Face layout, plain or quantized."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tokenmill.models.gguf_tokenizer import read_gguf
from tokenmill.models.source import ModelSource

Tensors = dict[str, torch.Tensor]
# A module's name and its matrix to the tensors of a file, and to the numbers those stand for.
Quantize = Callable[[str, torch.Tensor], tuple[Tensors, torch.Tensor]]


def llama_config(source: ModelSource, **changes: Any) -> dict[str, Any]:
    """config.json of a Llama with layers that are all alike."""
    spec, layer = source.spec, source.spec.layers[0]
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": spec.vocab_size,
        "hidden_size": spec.hidden,
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
        "eos_token_id": list(spec.eos_ids),
        **changes,
    }


def resave(
    source: ModelSource,
    weights: Mapping[str, torch.Tensor],
    folder: Path,
    config: Mapping[str, Any],
    quantize: Quantize,
) -> Tensors:
    """Writes the model with the matrices of its layers quantized, the rest in bfloat16.

    Args:
        config: `quantization_config`; empty for none.

    Returns:
        Every tensor as the numbers the folder stands for, float32.
    """
    folder.mkdir()
    tensors: Tensors = {}
    numbers: Tensors = {}
    for name, weight in weights.items():
        if weight.dim() == 2 and ".layers." in name:
            packed, numbers[name] = quantize(name.removesuffix(".weight"), weight)
            tensors |= packed
        else:
            tensors[name] = weight.bfloat16()
            numbers[name] = tensors[name].float()
    safetensors.torch.save_file(tensors, folder / "model.safetensors")
    changes = {"quantization_config": dict(config)} if config else {}
    (folder / "config.json").write_text(json.dumps(llama_config(source, **changes)))
    if source.tokenizer_files.gguf is None:
        raise ValueError("the model's tokenizer is in no GGUF file")
    read_gguf(source.tokenizer_files.gguf).backend.save(str(folder / "tokenizer.json"))
    return numbers
