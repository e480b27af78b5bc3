"""Checkpoints of Hugging Face layout as GGUF files, written the way llama.cpp's converter writes them.

Names come from the gguf package's own table; what else the converter changes is done here: rows of q and k in
rotary pairs (llama), Gemma's norms plus 1, experts stacked.
"""

from __future__ import annotations

import math
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy
import transformers

Array = np.ndarray[Any, Any]

# GGUF's name of the architecture, by `model_type`.
ARCHITECTURES: Mapping[str, gguf.MODEL_ARCH] = {
    "llama": gguf.MODEL_ARCH.LLAMA,
    "mistral": gguf.MODEL_ARCH.LLAMA,
    "mixtral": gguf.MODEL_ARCH.LLAMA,
    "qwen2": gguf.MODEL_ARCH.QWEN2,
    "qwen3": gguf.MODEL_ARCH.QWEN3,
    "qwen3_moe": gguf.MODEL_ARCH.QWEN3MOE,
    "gemma3_text": gguf.MODEL_ARCH.GEMMA3,
    "phi3": gguf.MODEL_ARCH.PHI3,
}
_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(\w+)\.weight")


def convert(
    folder: Path,
    path: Path,
    *,
    format_of: Callable[[str], str] = lambda name: "F32",
    stack_experts: bool = True,
    metadata: Callable[[gguf.GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Writes a checkpoint as GGUF. The checkpoint's tensors become what the file's come to: where formats round,
    both hold the same numbers.

    Args:
        format_of: format of a matrix by its GGUF name; vectors and routers stay F32.
        stack_experts: one tensor for all experts of a layer, as today; or one for each, as of old.
        metadata: writes further keys.
    """
    config = transformers.AutoConfig.from_pretrained(folder)
    architecture = ARCHITECTURES[config.model_type]
    names = gguf.get_tensor_name_map(architecture, config.num_hidden_layers)
    writer = gguf.GGUFWriter(path, gguf.MODEL_ARCH_NAMES[architecture])
    _write_config(writer, config)
    metadata(writer)
    checkpoint = safetensors.numpy.load_file(folder / "model.safetensors")
    experts: dict[str, dict[int, Array]] = defaultdict(dict)
    rounded = dict(checkpoint)
    for name, values in checkpoint.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            gguf_name = _gguf_name(names, name)
            stored = _as_stored(config, name, values)
            kind = "F32" if stored.ndim == 1 or "ffn_gate_inp" in gguf_name else format_of(gguf_name)
            blocks, came_to = _stored(stored, kind)
            _add(writer, gguf_name, blocks, kind)
            rounded[name] = _as_stored(config, name, came_to, back=True)
            continue
        stacked_name = _gguf_name(names, f"{match[1]}.{match[3]}.weight")
        kind = format_of(stacked_name)
        blocks, rounded[name] = _stored(values, kind)
        if stack_experts:
            experts[stacked_name][int(match[2])] = blocks
        else:
            _add(writer, stacked_name.replace("_exps", f".{match[2]}"), blocks, kind)
    for name, parts in experts.items():
        _add(writer, name, np.stack([parts[n] for n in range(len(parts))]), format_of(name))
    for name, factors in _rope_tensors(config).items():
        writer.add_tensor(name, np.array(factors, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    safetensors.numpy.save_file(rounded, folder / "model.safetensors", metadata={"format": "pt"})
    return path


def _gguf_name(names: gguf.TensorNameMap, name: str) -> str:
    found: str | None = names.get_name(name, try_suffixes=(".weight", ".bias"))
    if found is None:
        raise KeyError(name)
    return found


def _as_stored(config: Any, name: str, values: Array, *, back: bool = False) -> Array:
    """A checkpoint's tensor as GGUF has it, or the other way."""
    if config.model_type == "gemma3_text" and name.endswith("norm.weight"):
        return values - 1 if back else values + 1
    heads = {"q_proj": config.num_attention_heads, "k_proj": config.num_key_value_heads}
    part = name.split(".")[-2]
    if ARCHITECTURES[config.model_type] != gguf.MODEL_ARCH.LLAMA or part not in heads:
        return values
    halves = (heads[part], 2, len(values) // heads[part] // 2)
    shape = (halves[0], halves[2], 2) if back else halves
    return values.reshape(*shape, *values.shape[1:]).swapaxes(1, 2).reshape(values.shape)


def _stored(values: Array, kind: str) -> tuple[Array, Array]:
    """What the file holds, and the numbers that come out of it."""
    if kind == "F32":
        return values, values
    number = gguf.GGMLQuantizationType[kind]
    blocks = gguf.quants.quantize(values, number)
    return blocks, gguf.quants.dequantize(blocks, number).astype(np.float32)


def _add(writer: gguf.GGUFWriter, name: str, blocks: Array, kind: str) -> None:
    writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])


def _write_config(writer: gguf.GGUFWriter, config: Any) -> None:
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    if config.model_type in ("gemma3_text", "phi3", "mistral", "mixtral") and config.sliding_window:
        writer.add_sliding_window(config.sliding_window)
    if config.model_type in ("mixtral", "qwen3_moe"):
        writer.add_expert_count(config.num_local_experts)
        writer.add_expert_used_count(config.num_experts_per_tok)
    if config.model_type == "qwen3_moe":
        writer.add_expert_feed_forward_length(config.moe_intermediate_size)
    _write_rope(writer, config)


def _rope_of(config: Any) -> dict[str, Any]:
    """Parameters of the layers that look at the whole context."""
    parameters: dict[str, dict[str, Any]] = config.rope_parameters
    return parameters.get("full_attention", parameters)


def _write_rope(writer: gguf.GGUFWriter, config: Any) -> None:
    rope = _rope_of(config)
    writer.add_rope_freq_base(rope["rope_theta"])
    if config.model_type != "gemma3_text":
        writer.add_rope_dimension_count(int(config.head_dim * rope.get("partial_rotary_factor", 1.0)))
    if rope["rope_type"] in ("linear", "yarn"):
        writer.add_rope_scaling_type(gguf.RopeScalingType(rope["rope_type"]))
        writer.add_rope_scaling_factor(rope["factor"])
    if rope["rope_type"] == "yarn":
        writer.add_rope_scaling_orig_ctx_len(rope["original_max_position_embeddings"])
    if rope["rope_type"] == "longrope":
        original = config.original_max_position_embeddings
        scale = config.max_position_embeddings / original
        writer.add_rope_scaling_orig_ctx_len(original)
        writer.add_rope_scaling_attn_factors(math.sqrt(1 + math.log(scale) / math.log(original)))


def _rope_tensors(config: Any) -> dict[str, list[float]]:
    rope = _rope_of(config)
    if rope["rope_type"] == "longrope":
        return {
            "rope_factors_long.weight": rope["long_factor"],
            "rope_factors_short.weight": rope["short_factor"],
        }
    return (
        {"rope_freqs.weight": _llama3_factors(rope, config.head_dim)} if rope["rope_type"] == "llama3" else {}
    )


def _llama3_factors(rope: Mapping[str, Any], dim: int) -> list[float]:
    """Divisors of the frequencies that come to Llama 3.1's scaling."""
    found = []
    longest = rope["original_max_position_embeddings"] / rope["low_freq_factor"]
    shortest = rope["original_max_position_embeddings"] / rope["high_freq_factor"]
    for place in range(0, dim, 2):
        wave = 2 * math.pi * rope["rope_theta"] ** (place / dim)
        kept = (rope["original_max_position_embeddings"] / wave - rope["low_freq_factor"]) / (
            rope["high_freq_factor"] - rope["low_freq_factor"]
        )
        between = 1 / ((1 - kept) / rope["factor"] + kept)
        found.append(1.0 if wave < shortest else rope["factor"] if wave > longest else between)
    return found
