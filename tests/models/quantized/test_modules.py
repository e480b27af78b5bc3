"""Whole models whose weights are quantized: opened like any other, each matrix under its usual name."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch

from support.model_files import HIDDEN, INTERMEDIATE, LAYERS, hf_tensors, write_folder
from support.packers import Codes, awq, gptq, open_quantized, random_codes, rounded
from tokenmill.core.errors import ModelFileError
from tokenmill.models.packed_layout import PackedLayout
from tokenmill.models.source import open_model

AWQ: dict[str, Any] = {"quant_method": "awq", "bits": 4, "group_size": 32, "version": "gemm"}
GPTQ: dict[str, Any] = {"quant_method": "gptq", "bits": 4, "group_size": 32}


def quantized_model(folder: Path, method: str, *, shards: bool = False) -> dict[str, Codes]:
    """The small Llama with every matrix quantized, but for the embeddings; output head included."""
    plain, packed = hf_tensors(), {}
    tensors: dict[str, torch.Tensor] = {}
    for name, values in plain.items():
        module = name.removesuffix(".weight")
        if values.ndim == 2 and "embed" not in name:
            packed[name] = rounded(values, 32)
            tensors |= awq(module, packed[name]) if method == "awq" else gptq(module, packed[name])
            if method == "gptq":  # its writers give every module one, whether the model has biases or not
                tensors[f"{module}.bias"] = torch.zeros(values.shape[0])
        else:
            tensors[name] = torch.from_numpy(values)
    write_folder(folder, {}, {"quantization_config": AWQ if method == "awq" else GPTQ})
    (folder / "model.safetensors").unlink()
    names = sorted(tensors)
    parts = {"model.safetensors": names}
    if shards:  # so that a module's tensors lie in two files
        parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
        placed = {name: file for file, listed in parts.items() for name in listed}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": placed}))
    for file, listed in parts.items():
        safetensors.torch.save_file({name: tensors[name] for name in listed}, folder / file)
    return packed


@pytest.mark.parametrize("shards", [False, True], ids=["one file", "shards"])
@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_a_model_opens_with_every_matrix_under_its_usual_name(
    method: str, shards: bool, tmp_path: Path
) -> None:
    folder = tmp_path / "small"
    packed = quantized_model(folder, method, shards=shards)
    source = open_model(folder)
    assert not source.spec.tied_embeddings  # lm_head.weight is there, quantized
    assert set(source.weights.tensors) == {tensor.name for tensor in source.spec.tensors()}
    plain = hf_tensors()
    for name in source.weights.tensors:
        expected = packed[name].numbers() if name in packed else torch.from_numpy(plain[name])
        torch.testing.assert_close(source.weights.load(name, torch.float32), expected, rtol=0, atol=0)
        assert (source.weights.grouped(name) is not None) == (name in packed)
        # Rounding to the nearest of sixteen steps: half a step, and what half precision takes from the scale.
        if name in packed:
            step = packed[name].scales.max().astype(np.float32)
            assert float((expected - torch.from_numpy(plain[name])).abs().max()) < 0.52 * step
    source.weights.close()


@pytest.mark.parametrize("method", ["awq", "gptq"])
def test_planned_bytes_are_those_of_the_file(method: str, tmp_path: Path) -> None:
    """A layout and the model's shapes give the bytes of every quantized matrix before there is a file."""
    folder = tmp_path / "small"
    packed = quantized_model(folder, method)
    layout = PackedLayout("AWQ" if method == "awq" else "GPTQ", 4, 32, zeros=True, order=method == "gptq")
    planned = 0
    source = open_model(folder)
    for name, info in source.weights.tensors.items():
        planned += layout.nbytes(packed[name].codes.shape) if name in packed else info.nbytes
    data = safetensors.torch.load_file(folder / "model.safetensors")
    assert planned == sum(t.nbytes for name, t in data.items() if not name.endswith(".bias"))
    source.weights.close()


def test_fused_matrices_are_cut_into_their_parts(tmp_path: Path) -> None:
    """Phi-3 keeps q, k and v in one matrix, and gate and up in another."""
    folder = tmp_path / "small"
    tensors: dict[str, torch.Tensor] = {}
    expected: dict[str, torch.Tensor] = {}
    for layer in range(LAYERS):
        for fused, sizes in (
            ("self_attn.qkv_proj", {"self_attn.q_proj": 64, "self_attn.k_proj": 32, "self_attn.v_proj": 32}),
            ("mlp.gate_up_proj", {"mlp.gate_proj": INTERMEDIATE, "mlp.up_proj": INTERMEDIATE}),
        ):
            whole = random_codes(sum(sizes.values()), HIDDEN, 32, seed=layer)
            tensors |= awq(f"model.layers.{layer}.{fused}", whole)
            start = 0
            for name, rows in sizes.items():
                expected[f"model.layers.{layer}.{name}.weight"] = whole.numbers()[start : start + rows]
                start += rows
    kept = {name: torch.from_numpy(values) for name, values in hf_tensors().items() if name not in expected}
    changes = {"architectures": ["Phi3ForCausalLM"], "model_type": "phi3", "quantization_config": AWQ}
    write_folder(folder, {}, changes)
    safetensors.torch.save_file(tensors | kept, folder / "model.safetensors")
    source = open_model(folder)
    for name, numbers in expected.items():
        torch.testing.assert_close(source.weights.load(name, torch.float32), numbers, rtol=0, atol=0)
        grouped = source.weights.grouped(name)
        assert grouped is not None and source.weights.tensors[name].format == "AWQ4"
        torch.testing.assert_close(grouped.dequantize(), numbers, rtol=0, atol=0)
    source.weights.close()


def test_opening_a_quantized_model_imports_no_heavy_library(tmp_path: Path) -> None:
    for method in ("awq", "gptq"):
        quantized_model(tmp_path / method, method)
    code = (
        "import sys; from pathlib import Path; from tokenmill.models.source import open_model\n"
        "for path in sys.argv[1:]: open_model(Path(path)).weights.close()\n"
        "heavy = {'torch', 'numpy', 'safetensors', 'transformers', 'compressed_tensors'} & set(sys.modules)\n"
        "sys.exit(','.join(heavy) or 0)"
    )
    paths = [str(tmp_path / method) for method in ("awq", "gptq")]
    done = subprocess.run([sys.executable, "-c", code, *paths], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")


def test_quantized_tensors_without_a_configuration_are_refused(tmp_path: Path) -> None:
    tensors = awq("m", random_codes(16, 64, 32))
    with pytest.raises(ModelFileError, match=r"m is quantized, but config\.json has no quantization_config"):
        open_quantized(tmp_path / "small", tensors, None)


def test_a_refused_model_is_named_and_leaves_no_file_open(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    quantized_model(folder, "gptq")
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"]["group_size"] = 16
    (folder / "config.json").write_text(json.dumps(config))
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ModelFileError, match=r"^small: model\.safetensors: tensor lm_head\.scales has shape"):
        open_model(folder)
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_module_of_another_shape_than_the_model_asks_for_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "small"
    quantized_model(folder, "awq")
    config = json.loads((folder / "config.json").read_text())
    config["intermediate_size"] = 128
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(
        ModelFileError,
        match=r"mlp.gate_proj.weight has shape \[96, 64\], the configuration asks for \[128, 64\]",
    ):
        open_model(folder)


def test_a_file_that_shrank_since_it_was_opened_is_an_error(tmp_path: Path) -> None:
    """What was checked on opening is read again on loading, and the file may be another by then."""
    folder = tmp_path / "small"
    quantized_model(folder, "gptq")
    source = open_model(folder)
    with (folder / "model.safetensors").open("r+b") as file:
        file.truncate(1000)
    with pytest.raises(ModelFileError, match="it was longer when opened"):
        source.weights.load("lm_head.weight", torch.float32)
    source.weights.close()
