"""Small model files: GGUF by the gguf package's writer or by hand, folders by the safetensors package."""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import safetensors.numpy

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE, VOCAB = 2, 64, 4, 2, 16, 96, 40

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)

Array = np.ndarray[Any, Any]

LLAMA_METADATA: Mapping[str, tuple[int, Any]] = {
    "llama.block_count": (U32, LAYERS),
    "llama.context_length": (U32, 128),
    "llama.embedding_length": (U32, HIDDEN),
    "llama.feed_forward_length": (U32, INTERMEDIATE),
    "llama.attention.head_count": (U32, HEADS),
    "llama.attention.head_count_kv": (U32, KV_HEADS),
    "llama.attention.layer_norm_rms_epsilon": (F32, 1e-5),
    "llama.rope.dimension_count": (U32, HEAD_DIM),
    "llama.rope.freq_base": (F32, 10000.0),
    "llama.vocab_size": (U32, VOCAB),
    "tokenizer.ggml.bos_token_id": (U32, 1),
    "tokenizer.ggml.eos_token_id": (U32, 2),
}

LLAMA_CONFIG: Mapping[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": HIDDEN,
    "intermediate_size": INTERMEDIATE,
    "num_hidden_layers": LAYERS,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV_HEADS,
    "vocab_size": VOCAB,
    "max_position_embeddings": 128,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "bos_token_id": 1,
    "eos_token_id": 2,
}


def gguf_tensors(*, bias: bool = False) -> dict[str, Array]:
    """Random float32 tensors of the small Llama under GGUF's names, [out, in], output head included."""
    shapes: dict[str, tuple[int, ...]] = {"token_embd.weight": (VOCAB, HIDDEN)}
    for layer in range(LAYERS):
        prefix = f"blk.{layer}."
        for name, shape in (
            ("attn_norm", (HIDDEN,)),
            ("attn_q", (HEADS * HEAD_DIM, HIDDEN)),
            ("attn_k", (KV_HEADS * HEAD_DIM, HIDDEN)),
            ("attn_v", (KV_HEADS * HEAD_DIM, HIDDEN)),
            ("attn_output", (HIDDEN, HEADS * HEAD_DIM)),
            ("ffn_norm", (HIDDEN,)),
            ("ffn_gate", (INTERMEDIATE, HIDDEN)),
            ("ffn_up", (INTERMEDIATE, HIDDEN)),
            ("ffn_down", (HIDDEN, INTERMEDIATE)),
        ):
            shapes[f"{prefix}{name}.weight"] = shape
            if bias and "norm" not in name:
                shapes[f"{prefix}{name}.bias"] = shape[:1]
    shapes |= {"output_norm.weight": (HIDDEN,), "output.weight": (VOCAB, HIDDEN)}
    random = np.random.default_rng(0)
    return {name: random.standard_normal(shape).astype(np.float32) for name, shape in shapes.items()}


def write_gguf(
    path: Path,
    tensors: Mapping[str, Array] | None = None,
    metadata: Mapping[str, tuple[int, Any] | None] | None = None,
    quantize: Mapping[str, str] | None = None,
    architecture: str = "llama",
    stored: Mapping[str, tuple[str, Array]] | None = None,
    split_max_tensors: int = 0,
) -> Path:
    """A small Llama by the gguf package. `metadata` replaces or (None) removes keys, as (type, value);
    `quantize` maps a tensor's name to the block format it is stored in; `stored` are more tensors as
    (format, blocks uint8 [rows, row bytes]); with `split_max_tensors` it is written in parts beside `path`."""
    writer = gguf.GGUFWriter(path, architecture, split_max_tensors=split_max_tensors)
    for key, typed in {**LLAMA_METADATA, **(metadata or {})}.items():
        if typed is not None:
            kind = gguf.GGUFValueType(typed[0])
            inner = gguf.GGUFValueType.get_type(typed[1][0]) if kind == gguf.GGUFValueType.ARRAY else None
            writer.add_key_value(key, typed[1], kind, sub_type=inner)
    for name, values in (gguf_tensors() if tensors is None else tensors).items():
        if quantize and name in quantize:
            kind = gguf.GGMLQuantizationType[quantize[name]]
            writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
        else:
            writer.add_tensor(name, values)
    for name, (kind, blocks) in (stored or {}).items():
        writer.add_tensor(name, blocks, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def key(name: str, kind: int, value: bytes) -> bytes:
    return string(name) + struct.pack("<I", kind) + value


def array(kind: int, elements: Iterable[bytes], count: int | None = None) -> bytes:
    """The value of an array; `count` overrides the true number of elements."""
    parts = list(elements)
    return struct.pack("<IQ", kind, len(parts) if count is None else count) + b"".join(parts)


def entry(name: str | bytes, shape: Iterable[int], kind: int, offset: int) -> bytes:
    """A tensor as a GGUF header lists it; `shape` is [out, in]."""
    sizes = list(reversed(list(shape)))
    return string(name) + struct.pack(f"<I{len(sizes)}QIQ", len(sizes), *sizes, kind, offset)


def raw_gguf(
    keys: Iterable[bytes] = (),
    entries: Iterable[bytes] = (),
    data: bytes = b"",
    *,
    magic: bytes = b"GGUF",
    version: int = 3,
    tensor_count: int | None = None,
    key_count: int | None = None,
    alignment: int = 32,
) -> bytes:
    """A GGUF file by hand; the counts override the true ones."""
    keys, entries = list(keys), list(entries)
    counts = (
        len(entries) if tensor_count is None else tensor_count,
        len(keys) if key_count is None else key_count,
    )
    header = magic + struct.pack("<IQQ", version, *counts) + b"".join(keys) + b"".join(entries)
    return header + b"\0" * (-len(header) % alignment) + data


def raw_safetensors(header: object, data: bytes = b"", *, length: int | None = None) -> bytes:
    """A safetensors file by hand; `header` is text or anything JSON, `length` overrides its true length."""
    raw = header.encode() if isinstance(header, str) else json.dumps(header).encode()
    return struct.pack("<Q", len(raw) if length is None else length) + raw + data


def hf_tensors(*, bias: bool = False) -> dict[str, Array]:
    """The tensors of `gguf_tensors` under Hugging Face names. (Rows of q and k keep their order.)"""
    from tokenmill.models.gguf_weights import canonical_name

    named = {canonical_name(name): values for name, values in gguf_tensors(bias=bias).items()}
    return {name: values for name, values in named.items() if name is not None}


def write_folder(
    folder: Path,
    tensors: Mapping[str, Array] | None = None,
    config: Mapping[str, Any] | None = None,
    **files: Mapping[str, Any],
) -> Path:
    """A folder in Hugging Face layout. `config` replaces or (...) removes keys; `files` are further JSON
    files by their name without ending."""
    folder.mkdir(exist_ok=True)
    values = {k: v for k, v in {**LLAMA_CONFIG, **(config or {})}.items() if v is not ...}
    (folder / "config.json").write_text(json.dumps(values))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    safetensors.numpy.save_file(
        dict(hf_tensors() if tensors is None else tensors), folder / "model.safetensors"
    )
    return folder
