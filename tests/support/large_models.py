"""Models of a real size with random weights, for what depends on sizes alone."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from support.tiny_models import save_tokenizer

# Qwen3-0.6B's configuration, with the special tokens of the test tokenizer.
QWEN3: dict[str, Any] = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "hidden_size": 1024,
    "intermediate_size": 3072,
    "num_hidden_layers": 28,
    "num_attention_heads": 16,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "tie_word_embeddings": True,
    "torch_dtype": "bfloat16",
    "bos_token_id": 1,
    "eos_token_id": 2,
}
_ROWS_AT_ONCE = 4096


def write_qwen3(folder: Path, seed: int = 0) -> None:
    """A model of Qwen3-0.6B's shapes, 1.2 GB of bfloat16, written a few megabytes at a time."""
    (folder / "config.json").write_text(json.dumps(QWEN3))
    save_tokenizer(folder)
    shapes = dict(_shapes())
    header: dict[str, Any] = {}
    end = 0
    for name, shape in shapes.items():
        start, end = end, end + 2 * math.prod(shape)
        header[name] = {"dtype": "BF16", "shape": list(shape), "data_offsets": [start, end]}
    raw = json.dumps(header).encode()
    random = np.random.default_rng(seed)
    with (folder / "model.safetensors").open("wb") as file:
        file.write(len(raw).to_bytes(8, "little") + raw)
        for name, shape in shapes.items():
            for start in range(0, shape[0], _ROWS_AT_ONCE):
                rows = min(_ROWS_AT_ONCE, shape[0] - start)
                file.write(_numbers(random, (rows, *shape[1:]), norm=name.endswith("norm.weight")))


def _numbers(random: np.random.Generator, shape: tuple[int, ...], *, norm: bool) -> bytes:
    """bfloat16 of magnitude 1/64 to 1/32 with either sign; norms are 1 to 2."""
    bits = random.integers(0, 1 << 16, shape, dtype=np.uint16)
    exponent = 127 if norm else 121
    return ((bits & (0x007F if norm else 0x807F)) | (exponent << 7)).astype("<u2").tobytes()


def _shapes() -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, width, dim = QWEN3["hidden_size"], QWEN3["intermediate_size"], QWEN3["head_dim"]
    q, kv = QWEN3["num_attention_heads"] * dim, QWEN3["num_key_value_heads"] * dim
    yield "model.embed_tokens.weight", (QWEN3["vocab_size"], hidden)
    yield "model.norm.weight", (hidden,)
    for number in range(QWEN3["num_hidden_layers"]):
        for name, shape in {
            "input_layernorm": (hidden,),
            "self_attn.q_proj": (q, hidden),
            "self_attn.k_proj": (kv, hidden),
            "self_attn.v_proj": (kv, hidden),
            "self_attn.o_proj": (hidden, q),
            "self_attn.q_norm": (dim,),
            "self_attn.k_norm": (dim,),
            "post_attention_layernorm": (hidden,),
            "mlp.gate_proj": (width, hidden),
            "mlp.up_proj": (width, hidden),
            "mlp.down_proj": (hidden, width),
        }.items():
            yield f"model.layers.{number}.{name}.weight", shape
