"""A model of the shape of Qwen3-0.6B with random weights, as a GGUF file in Q4_1.

It says nothing of use, and takes the time the real one takes. Its tokenizer is borrowed from another file and
filled up with tokens that no text contains.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import gguf
import numpy as np
import numpy.typing as npt

from tokenmill.models.source import open_model

LAYERS, HIDDEN, HEADS, KV_HEADS, HEAD_DIM, INTERMEDIATE = 28, 1024, 16, 8, 128, 3072
VOCABULARY, CONTEXT, THETA, EPSILON = 151_936, 40_960, 1e6, 1e-6
DEVIATION = 0.02
SEED = 0

_NORMAL = 1
Floats = npt.NDArray[np.float32]


def write_qwen3_shape(path: Path, *, tokenizer_of: Path) -> None:
    """Writes the file; it appears when it is whole. The tokenizer is that of the GGUF file `tokenizer_of`."""
    source = open_model(tokenizer_of)
    source.weights.close()
    fresh = path.with_name(path.name + ".new")
    writer = gguf.GGUFWriter(fresh, "qwen3")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_value_length(HEAD_DIM)
    writer.add_layer_norm_rms_eps(EPSILON)
    writer.add_rope_freq_base(THETA)
    writer.add_rope_dimension_count(HEAD_DIM)
    writer.add_file_type(gguf.LlamaFileType.MOSTLY_Q4_1)
    writer.add_quantization_version(gguf.GGML_QUANT_VERSION)
    _write_tokenizer(writer, source.tokenizer_files.gguf or {})
    rng = np.random.default_rng(SEED)
    for name, shape in tensors():
        if len(shape) == 1:
            writer.add_tensor(name, np.ones(shape, np.float32))
            continue
        # llama.cpp, too, keeps the embeddings finer than the rest.
        kind = gguf.GGMLQuantizationType["Q8_0" if name == "token_embd.weight" else "Q4_1"]
        values: Floats = rng.standard_normal(shape, np.float32) * np.float32(DEVIATION)
        writer.add_tensor(name, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    fresh.rename(path)


def tensors() -> Sequence[tuple[str, tuple[int, ...]]]:
    """Every tensor of the file: its GGUF name and [out, in], or [size] for a norm."""
    layer: Mapping[str, tuple[int, ...]] = {
        "attn_norm": (HIDDEN,),
        "attn_q": (HEADS * HEAD_DIM, HIDDEN),
        "attn_k": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_v": (KV_HEADS * HEAD_DIM, HIDDEN),
        "attn_q_norm": (HEAD_DIM,),
        "attn_k_norm": (HEAD_DIM,),
        "attn_output": (HIDDEN, HEADS * HEAD_DIM),
        "ffn_norm": (HIDDEN,),
        "ffn_gate": (INTERMEDIATE, HIDDEN),
        "ffn_up": (INTERMEDIATE, HIDDEN),
        "ffn_down": (HIDDEN, INTERMEDIATE),
    }
    layers = [
        (f"blk.{number}.{name}.weight", shape) for number in range(LAYERS) for name, shape in layer.items()
    ]
    return [
        ("token_embd.weight", (VOCABULARY, HIDDEN)),
        *layers,
        ("output_norm.weight", (HIDDEN,)),
    ]


def _write_tokenizer(writer: gguf.GGUFWriter, metadata: Mapping[str, object]) -> None:
    """Raises ValueError when the metadata hold no byte-level tokenizer that is small enough."""
    tokens, types, merges = (_listed(metadata, name) for name in ("tokens", "token_type", "merges"))
    missing = VOCABULARY - len(tokens)
    if missing < 0 or len(types) != len(tokens):
        raise ValueError(f"a tokenizer of {len(tokens)} tokens cannot be filled up to {VOCABULARY}")
    writer.add_tokenizer_model(str(metadata["tokenizer.ggml.model"]))
    writer.add_tokenizer_pre(str(metadata["tokenizer.ggml.pre"]))
    writer.add_token_list([*tokens, *(f"unused{number}" for number in range(missing))])
    writer.add_token_types([*types, *[_NORMAL] * missing])
    writer.add_token_merges(merges)
    writer.add_add_bos_token(False)
    for kind, add in (("bos", writer.add_bos_token_id), ("eos", writer.add_eos_token_id)):
        add(metadata[f"tokenizer.ggml.{kind}_token_id"])


def _listed(metadata: Mapping[str, object], name: str) -> list[object]:
    value = metadata.get(f"tokenizer.ggml.{name}")
    if not isinstance(value, list):
        raise ValueError(f"the file holds no list tokenizer.ggml.{name}")
    return value
