"""Phi-3 with its fused matrices quantized: their parts are rows of the packed ones, and the logits are those of
the numbers that were packed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from support.packers import Codes, Tensors, awq, gptq, rounded
from support.tiny_models import save_tiny, step_of
from tokenmill.engine.models import build_program
from tokenmill.kernels.program import KvLayout
from tokenmill.kernels.reference import ReferenceProgram
from tokenmill.models.source import open_model

PROMPT = [3, 17, 5, 21, 9, 30, 2, 11]
SIZES = {"bits": 4, "group_size": 16}
SCHEMES: dict[str, tuple[Callable[[str, Codes], Tensors], dict[str, Any]]] = {
    "awq": (awq, {"quant_method": "awq", "zero_point": True, "version": "gemm", **SIZES}),
    "gptq": (gptq, {"quant_method": "gptq", "desc_act": False, "sym": False, **SIZES}),
}


def logits(folder: Path) -> torch.Tensor:
    source = open_model(folder)
    packed = build_program(source.spec, source.weights, torch.float32, 64)
    source.weights.close()
    shapes = tuple((layer.kv_heads, layer.head_dim) for layer in source.spec.layers)
    program = ReferenceProgram(packed, KvLayout(1, 64, shapes), torch.float32)
    return program.run(step_of([(PROMPT, 0, [0])], block_size=64)).logits


@pytest.mark.parametrize("name", SCHEMES)
def test_logits_are_those_of_the_packed_numbers(name: str, tmp_path: Path) -> None:
    pack, config = SCHEMES[name]
    save_tiny("phi3", tmp_path)
    path = tmp_path / "model.safetensors"
    tensors = safetensors.torch.load_file(path)
    plain, quantized = dict(tensors), dict(tensors)
    for key, weight in tensors.items():
        if key.endswith(("qkv_proj.weight", "gate_up_proj.weight")):
            matrix = rounded(weight.float().numpy(), 16)
            plain[key] = matrix.numbers()
            del quantized[key]
            quantized |= pack(key.removesuffix(".weight"), matrix)
    assert len(quantized) > len(plain)
    safetensors.torch.save_file(plain, path)
    expected = logits(tmp_path)
    safetensors.torch.save_file(quantized, path)
    whole = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(whole | {"quantization_config": config}))
    torch.testing.assert_close(logits(tmp_path), expected, rtol=0, atol=0)
