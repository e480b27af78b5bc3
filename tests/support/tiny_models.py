"""Tiny randomly initialised models, with transformers as the oracle."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from tokenmill.engine.models import build_program
from tokenmill.kernels.program import KvLayout
from tokenmill.kernels.reference import ReferenceProgram
from tokenmill.kernels.step import Step
from tokenmill.models.source import open_model

VOCAB = 160


SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 1024,
    "initializer_range": 0.2,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
    "tie_word_embeddings": False,
}
# Of each kind: names of its transformers configuration and model, and sizes of its own.
KINDS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", "LlamaForCausalLM", {}),
    "mistral": ("MistralConfig", "MistralForCausalLM", {}),
    "qwen2": ("Qwen2Config", "Qwen2ForCausalLM", {}),
    "qwen3": ("Qwen3Config", "Qwen3ForCausalLM", {}),
    "gemma3": ("Gemma3TextConfig", "Gemma3ForCausalLM", {"tie_word_embeddings": True}),
    "phi3": ("Phi3Config", "Phi3ForCausalLM", {"hidden_size": 96, "initializer_range": 0.14}),
    "mixtral": ("MixtralConfig", "MixtralForCausalLM", {"num_local_experts": 5, "num_experts_per_tok": 2}),
    "qwen3_moe": (
        "Qwen3MoeConfig",
        "Qwen3MoeForCausalLM",
        {"num_experts": 6, "num_experts_per_tok": 3, "moe_intermediate_size": 40},
    ),
}


_VISION: dict[str, Any] = {
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 28,
    "patch_size": 14,
}
# Models with a vision part around one of the kinds.
WITH_PICTURES: dict[str, tuple[str, str, str, dict[str, Any]]] = {
    "gemma3-pictures": ("gemma3", "Gemma3Config", "Gemma3ForConditionalGeneration", _VISION),
    "mistral3-pictures": (
        "mistral",
        "Mistral3Config",
        "Mistral3ForConditionalGeneration",
        {**_VISION, "model_type": "pixtral"},
    ),
}


def save_tiny(kind: str, folder: Path, **changes: Any) -> Any:
    """Writes a tiny checkpoint of a kind and returns the transformers model, float32."""
    import transformers

    if kind in WITH_PICTURES:
        inner, config_name, name, vision = WITH_PICTURES[kind]
        text = _config(inner, **changes)
        config = getattr(transformers, config_name)(text_config=text, vision_config=dict(vision))
    else:
        name, config = KINDS[kind][1], _config(kind, **changes)
    torch.manual_seed(0)
    model = getattr(transformers, name)(config).eval().float()
    low, high = (-0.5, 0.5) if kind.startswith("gemma3") else (0.5, 1.5)  # Gemma stores norms less 1
    with torch.no_grad():
        for parameter_name, parameter in model.named_parameters():
            if "norm" in parameter_name:
                parameter.uniform_(low, high)
    model.save_pretrained(folder)
    return model


def _config(kind: str, **changes: Any) -> Any:
    import transformers

    config_name, _, own = KINDS[kind]
    return getattr(transformers, config_name)(**{**SIZES, **own, **changes})


def load_tiny(
    folder: Path, *, num_blocks: int = 64, block_size: int = 16, dtype: torch.dtype | None = None
) -> ReferenceProgram:
    """The checkpoint as a step program with matrices and KV in `dtype`, float32 by default."""
    source = open_model(folder)
    packed = build_program(source.spec, source.weights, dtype or torch.float32, source.spec.max_position)
    source.weights.close()
    shapes = tuple((layer.kv_heads, layer.head_dim) for layer in source.spec.layers)
    return ReferenceProgram(packed, KvLayout(num_blocks, block_size, shapes), dtype or torch.float32)


def step_of(parts: list[tuple[list[int], int, list[int]]], block_size: int = 16) -> Step:
    """A step from (new tokens, tokens before them, blocks) a sequence; logits of every token."""
    width = max(len(blocks) for _, _, blocks in parts)
    tables = np.zeros((len(parts), width), dtype=np.int64)
    tokens: list[int] = []
    positions: list[int] = []
    slots: list[int] = []
    starts = [0]
    for row, (new, before, blocks) in enumerate(parts):
        tables[row, : len(blocks)] = blocks
        for offset, token in enumerate(new):
            position = before + offset
            tokens.append(token)
            positions.append(position)
            slots.append(blocks[position // block_size] * block_size + position % block_size)
        starts.append(len(tokens))
    return Step(
        np.array(tokens),
        np.array(positions),
        np.array(slots),
        np.array(starts),
        np.array([before + len(new) for new, before, _ in parts]),
        tables,
        np.arange(len(tokens)),
    )


CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def save_tokenizer(folder: Path) -> None:
    """A byte-level tokenizer of at most `VOCAB` tokens, with a chat template."""
    import json

    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    specials = ["<|pad|>", "<|im_start|>", "<|im_end|>"]
    # Fewer tokens than bytes: what the letters below do not cover is unknown, and the tests do not use it.
    trainer = trainers.BpeTrainer(vocab_size=VOCAB, special_tokens=specials, show_progress=False)
    letters = "".join(chr(code) for code in range(32, 127))
    tokenizer.train_from_iterator([letters, "the model says hello and the world", "\n"], trainer)
    tokenizer.save(str(folder / "tokenizer.json"))
    config = {"eos_token": "<|im_end|>", "bos_token": "<|im_start|>", "chat_template": CHAT_TEMPLATE}
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
