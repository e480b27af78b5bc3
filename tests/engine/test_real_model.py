"""The real model against transformers, which reads the same file by code of its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from support.real_engine import RealModel, tokens
from tokenmill.core.request import SamplingParams

PROMPTS = [
    "The capital of France is",
    "Once upon a time, in a small village by the sea,",
    "def fibonacci(n):\n    ",
    "Water boils at a temperature of",
    "The three primary colours are red,",
    "In 1969, humans first",
    "To make a cup of tea, first",
    "Dear Sir or Madam,\n\nI am writing to",
    "SELECT name, age FROM users WHERE",
    "The opposite of hot is",
    "Photosynthesis is the process by which",
    "1, 2, 3, 4, 5,",
    "Shakespeare wrote many plays, including",
    "El perro corre por",
    "La capitale de l'Italie est",
    "import numpy as np\n\nx = np.",
    "Q: What is 2 + 2?\nA:",
    "The mitochondria is the",
    "Roses are red, violets are",
    "<html>\n<head>\n<title>",
]
OUTPUT = 12
# Where the two likeliest tokens are closer than this, either may come first.
MARGIN = 1e-4


@pytest.fixture(scope="module")
def oracle(small_model_path: Path) -> Any:
    import transformers
    from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

    settings = load_gguf_checkpoint(str(small_model_path))["config"]
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings)).float().eval()
    loaded = load_gguf_checkpoint(str(small_model_path), return_tensors=True, model_to_load=model)
    missing, unexpected = model.load_state_dict(loaded["tensors"], strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    return model


def test_greedy_text_and_top_five(small_model_path: Path, oracle: Any) -> None:
    model = RealModel.load(small_model_path, torch.float32)
    prompts = [model.tokenizer.encode(prompt, add_special=True) for prompt in PROMPTS]
    params = SamplingParams(temperature=0, max_tokens=OUTPUT, logprobs=5, ignore_eos=True)
    excused = 0
    for prompt, deltas in zip(prompts, model.run(prompts, params), strict=True):
        answer = tokens(deltas)
        with torch.no_grad():
            logits = oracle(torch.tensor([prompt + answer])).logits[0, len(prompt) - 1 : -1]
        reference = torch.log_softmax(logits, dim=-1)
        for at, token in enumerate(answer):
            best = reference[at].topk(6)
            if best.values[0] - best.values[1] < MARGIN:
                excused += 1
            else:
                assert token == int(best.indices[0])
        found = [entry for delta in deltas for entry in delta.logprobs]
        for at, entry in enumerate(found):
            best = reference[at].topk(6)
            assert entry.logprob == pytest.approx(float(reference[at, entry.token_id]), abs=MARGIN)
            if best.values[4] - best.values[5] >= MARGIN:
                assert {top.token_id for top in entry.top} == set(best.indices[:5].tolist())
    assert excused <= 2
