"""A GGUF file of every architecture computes what transformers computes from the same checkpoint."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest
import torch
import transformers
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from support.gguf_models import convert
from support.tiny_models import VOCAB, load_tiny, save_tiny, step_of
from tokenmill.core.errors import ModelFileError
from tokenmill.models.source import open_model

# Rows of whole blocks of 32.
SIZES = {"hidden_size": 96, "intermediate_size": 96}
LENGTH = 50
# A band of pairs, so that blending and both ends show.
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 128,
}
YARN = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 4.0,
    "original_max_position_embeddings": 256,
}
LONGROPE = {
    "rope_type": "longrope",
    "rope_theta": 10000.0,
    "partial_rotary_factor": 0.75,
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5],
    "long_factor": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
}
GEMMA = {"num_hidden_layers": 7, "query_pre_attn_scalar": 16, "sliding_window": 20}
GEMMA_ROPES = {
    "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6},
    "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
}
MOE = {"moe_intermediate_size": 64, "norm_topk_prob": True}


@dataclass(frozen=True)
class Case:
    """A kind of tiny model with changes of its configuration, and arguments of `convert`."""

    kind: str
    changes: dict[str, Any] = field(default_factory=dict)
    written: dict[str, Any] = field(default_factory=dict)


CASES = {
    "llama": Case("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama3 scaling": Case("llama", {"rope_parameters": LLAMA3}),
    "mistral with a window": Case("mistral", {"sliding_window": 20}),
    "mixtral": Case("mixtral"),
    "mixtral, experts apart": Case("mixtral", written={"stack_experts": False}),
    "qwen2": Case("qwen2"),
    "qwen2 with yarn": Case("qwen2", {"rope_parameters": YARN}),
    "qwen2, tied": Case("qwen2", {"tie_word_embeddings": True}),
    "qwen3": Case("qwen3"),
    "qwen3 moe": Case("qwen3_moe", MOE),
    "qwen3 moe, weights as they are": Case(
        "qwen3_moe",
        {**MOE, "norm_topk_prob": False},
        {"metadata": lambda writer: writer.add_expert_weights_norm(False)},
    ),
    "gemma3": Case("gemma3", GEMMA),
    "gemma3, scaled": Case("gemma3", {**GEMMA, "rope_parameters": GEMMA_ROPES}),
    "phi3": Case("phi3", {"sliding_window": 20}),
    "phi3, long, part of a head": Case(
        "phi3",
        {
            "rope_parameters": LONGROPE,
            "original_max_position_embeddings": 32,
            "max_position_embeddings": 256,
        },
    ),
}


def mixed(name: str) -> str:
    """A format by name, so that every part of a layer has another."""
    formats = ("Q8_0", "Q5_1", "F16", "Q4_1", "BF16", "Q5_0", "Q4_0")
    return formats[sum(name.encode()) % len(formats)]


def logits_of(path: Path, tokens: list[int]) -> torch.Tensor:
    blocks = list(range(-(-len(tokens) // 16)))
    return load_tiny(path).run(step_of([(tokens, 0, blocks)])).logits


def oracle(folder: Path, tokens: list[int]) -> torch.Tensor:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([tokens])).logits[0]
    return logits


def tokens() -> list[int]:
    return [int(token) for token in np.random.default_rng(7).integers(3, VOCAB, LENGTH)]


@pytest.mark.parametrize("format_of", [lambda name: "F32", mixed], ids=["float32", "mixed formats"])
@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_transformers(name: str, format_of: Callable[[str], str], tmp_path: Path) -> None:
    case = CASES[name]
    save_tiny(case.kind, tmp_path, **{**SIZES, **case.changes})
    path = convert(tmp_path, tmp_path / "tiny.gguf", format_of=format_of, **case.written)
    expected = oracle(tmp_path, tokens())
    assert expected.std() > 0.1  # not the same for every token
    torch.testing.assert_close(logits_of(path, tokens()), expected, rtol=1e-4, atol=1e-4)


def vocabulary(writer: gguf.GGUFWriter) -> None:
    """What transformers wants to see before it opens a file."""
    writer.add_name("tiny")
    writer.add_vocab_size(VOCAB)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list([f"w{n}" for n in range(VOCAB)])
    writer.add_token_types([1] * VOCAB)
    writer.add_token_merges(["w 1"])


@pytest.mark.parametrize(
    ("kind", "changes"),
    [("llama", {}), ("qwen2", {}), ("qwen3", {}), ("phi3", {}), ("gemma3", GEMMA)],
)
def test_tensors_are_those_transformers_reads_from_the_same_file(
    kind: str, changes: dict[str, Any], tmp_path: Path
) -> None:
    model = save_tiny(kind, tmp_path, **{**SIZES, **changes})
    path = convert(tmp_path, tmp_path / "tiny.gguf", format_of=mixed, metadata=vocabulary)
    read = load_gguf_checkpoint(path, return_tensors=True, model_to_load=model)["tensors"]
    model.load_state_dict(read, strict=kind != "gemma3")  # a tied head is no tensor of the file
    with torch.no_grad():
        expected = model(torch.tensor([tokens()])).logits[0]
    torch.testing.assert_close(logits_of(path, tokens()), expected, rtol=1e-4, atol=1e-4)


def rewritten(path: Path, tensors: dict[str, np.ndarray | None]) -> Path:
    """A file with other tensors (None: without it), all in F32."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(
        path.with_name("changed.gguf"), reader.get_field("general.architecture").contents()
    )
    for name, found in reader.fields.items():
        if not name.startswith("GGUF.") and name != "general.architecture":
            writer.add_key_value(name, found.contents(), found.types[0])
    for tensor in reader.tensors:
        values = tensors.get(tensor.name, np.array(tensor.data))
        if values is not None:
            writer.add_tensor(tensor.name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path.with_name("changed.gguf")


@pytest.mark.parametrize(
    ("kind", "changes", "tensor", "values", "message"),
    [
        (
            "phi3",
            {},
            "attn_qkv",
            np.zeros((159, 96)),
            r"attn_qkv.weight has shape \[159, 96\], .* \[160, 96\]",
        ),
        ("phi3", {}, "attn_qkv", None, r"self_attn\.q_proj\.weight and 2 more is missing"),
        ("phi3", {}, "ffn_up", np.zeros((191, 96)), r"mlp\.gate_proj\.weight is missing"),
        ("mixtral", {}, "ffn_up_exps", np.zeros((4, 96, 96)), r"ffn_up_exps.weight has shape \[4, 96, 96\]"),
        ("mixtral", {}, "ffn_down_exps", np.zeros((5, 96, 95)), r"asks for \[5, 96, 96\]"),
        ("mixtral", {}, "ffn_gate_exps", None, r"experts\.0\.gate_proj\.weight and 4 more is missing"),
        ("mixtral", {}, "ffn_gate_inp", np.zeros((4, 96)), r"mlp\.gate\.weight has shape \[4, 96\]"),
        ("qwen3", {}, "attn_q_norm", None, r"self_attn\.q_norm\.weight is missing"),
        ("gemma3", GEMMA, "post_ffw_norm", None, r"post_feedforward_layernorm\.weight is missing"),
    ],
)
def test_a_tensor_that_is_missing_or_of_another_shape_is_refused_by_name(
    kind: str,
    changes: dict[str, Any],
    tensor: str,
    values: np.ndarray | None,
    message: str,
    tmp_path: Path,
) -> None:
    save_tiny(kind, tmp_path, **{**SIZES, **changes})
    path = convert(tmp_path, tmp_path / "tiny.gguf")
    changed = None if values is None else values.astype(np.float32)
    with pytest.raises(ModelFileError, match=message):
        open_model(rewritten(path, {f"blk.1.{tensor}.weight": changed}))
