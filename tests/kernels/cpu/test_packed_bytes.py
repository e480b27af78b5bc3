"""The planner's bytes are those that packing makes, whatever a file stores."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from support.ggml_blocks import random_ggml
from support.model_files import write_folder, write_gguf
from support.packers import awq, gptq, open_quantized, random_codes
from support.tiny_models import KINDS, save_tiny
from tokenmill.kernels.cpu.pack import pack_named
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.models.formats import FORMATS
from tokenmill.models.grouped import Grouped
from tokenmill.models.source import open_model
from tokenmill.models.spec import LayerSpec, ModelSpec, RopeSpec
from tokenmill.models.tensor_info import GGML_GROUPINGS, TensorInfo
from tokenmill.models.weights import WeightFile
from tokenmill.planner.packed_weights import packed_weight_bytes, products
from tokenmill.planner.packing import Quantization, packing_of

FLAGS: tuple[Quantization, ...] = ("auto", "none", "int8", "int4")
LAYER = LayerSpec(4, 2, 64, 512, 0.125, RopeSpec(1e4, 64), mlp_bias=True, qkv_bias=True)


class RandomWeights:
    """Weights that no file holds, each tensor in a format of its own."""

    def __init__(self, spec: ModelSpec, formats: Mapping[str, str]) -> None:
        self.tensors = {t.name: TensorInfo(t.name, t.shape, formats[t.name], 0) for t in spec.tensors()}
        self.nbytes = 0

    def load(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        grouped = self.grouped(name)
        if grouped is not None:
            return grouped.dequantize().to(dtype)
        return torch.ones(self.tensors[name].shape, dtype=dtype)

    def grouped(self, name: str) -> Grouped | None:
        info = self.tensors[name]
        return random_ggml(info.format, *info.shape) if info.grouping else None

    def close(self) -> None:
        pass


def packed(weights: WeightFile, spec: ModelSpec, wanted: Quantization) -> list[PackedMatrix]:
    return [
        matrix
        for names, gated in products(spec)
        for matrix in pack_named(weights, names, wanted, gated=gated)
    ]


def made(weights: WeightFile, spec: ModelSpec, wanted: Quantization) -> int:
    """Bytes of all packed matrices, and of float32 vectors."""
    vectors = sum(tensor.shape[0] for tensor in spec.tensors() if len(tensor.shape) == 1)
    return 4 * vectors + sum(matrix.data.nbytes for matrix in packed(weights, spec, wanted))


@pytest.mark.parametrize("wanted", FLAGS)
@pytest.mark.parametrize("seed", range(6))
def test_a_model_in_any_formats(seed: int, wanted: Quantization) -> None:
    spec = ModelSpec("llama", 70, 256, (LAYER, LAYER), 1e-5, 64, tied_embeddings=bool(seed % 2))
    choose = random.Random(seed).choice
    few = [choose(list(FORMATS)) for _ in range(3)]  # so that some neighbours are alike
    formats = {t.name: choose(few) if len(t.shape) == 2 else "F32" for t in spec.tensors()}
    weights = RandomWeights(spec, formats)
    assert packed_weight_bytes(spec, weights.tensors, wanted) == made(weights, spec, wanted)


@pytest.mark.parametrize("kind", KINDS)
def test_every_family(kind: str, tmp_path: Path) -> None:
    save_tiny(kind, tmp_path / kind)
    source = open_model(tmp_path / kind)
    for wanted in FLAGS:
        planned = packed_weight_bytes(source.spec, source.weights.tensors, wanted)
        assert planned == made(source.weights, source.spec, wanted)
    source.weights.close()


def test_biases_of_gate_and_up_are_padded_as_their_rows(tmp_path: Path) -> None:
    source = open_model(write_folder(tmp_path / "small", config={"intermediate_size": 96}))
    plain = packed_weight_bytes(source.spec, source.weights.tensors, "auto")
    assert plain == made(source.weights, source.spec, "auto")
    source.weights.close()
    narrow = LayerSpec(4, 2, 16, 40, 0.25, RopeSpec(1e4, 16), mlp_bias=True)
    spec = ModelSpec("llama", 32, 64, (narrow,), 1e-5, 64, tied_embeddings=True)
    weights = RandomWeights(spec, {t.name: "BF16" for t in spec.tensors()})
    padding = 4 * 2 * (48 - 40)
    assert packed_weight_bytes(spec, weights.tensors, "auto") == made(weights, spec, "auto") + padding


def test_a_file_of_mixed_formats_packs_what_is_alike_together(tmp_path: Path) -> None:
    quantize = {
        f"blk.0.attn_{name}.weight": kind for name, kind in (("q", "Q4_0"), ("k", "Q4_0"), ("v", "Q8_0"))
    }
    quantize |= {"blk.0.ffn_gate.weight": "Q4_0", "blk.0.ffn_up.weight": "Q5_1"}
    source = open_model(write_gguf(tmp_path / "mixed.gguf", quantize=quantize))
    at = "model.layers.0."
    qkv = pack_named(source.weights, [f"{at}self_attn.{name}_proj.weight" for name in "qkv"], "auto")
    assert [matrix.shape.format.name for matrix in qkv] == ["INT4", "INT8"]
    assert all(matrix.exact for matrix in qkv)
    (both,) = pack_named(
        source.weights, [f"{at}mlp.{n}_proj.weight" for n in ("gate", "up")], "auto", gated=True
    )
    assert both.shape.format.name == "INT8" and not both.exact
    planned = packed_weight_bytes(source.spec, source.weights.tensors, "auto")
    assert planned == made(source.weights, source.spec, "auto")
    source.weights.close()


@pytest.mark.parametrize("name", GGML_GROUPINGS)
def test_what_is_said_of_ggml_blocks_holds(name: str) -> None:
    said, found = GGML_GROUPINGS[name], random_ggml(name, 64, 512)
    assert (said.bits, said.group, said.offsets) == (found.bits, found.group, found.offsets is not None)
    parts = [found.scales] if found.offsets is None else [found.scales, found.offsets]
    assert all(torch.equal(part.half().float(), part) for part in parts) or not said.half


@pytest.mark.parametrize("bits", [2, 4, 8])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_zero_points_in_the_middle_are_seen_without_reading_codes(
    version: str, bits: int, tmp_path: Path
) -> None:
    config: dict[str, Any] = {
        "quant_method": "gptq",
        "bits": bits,
        "group_size": 32,
        "checkpoint_format": version,
    }
    matrix = random_codes(32, 128, 32, bits)
    for zeros in ("any", "middle"):
        if zeros == "middle":
            matrix.zeros[:] = 1 << (bits - 1)
        tensors = gptq("m", matrix, bits, 1 if version == "gptq" else 2)
        weights = open_quantized(tmp_path / zeros, tensors, config)
        grouping = weights.tensors["m.weight"].grouping
        grouped = weights.grouped("m.weight")
        assert grouping is not None and grouped is not None
        assert (grouping.bits, grouping.group) == (bits, 32)
        assert grouping.offsets == (zeros == "any") == (not grouped.symmetric)
        assert grouping.half == (zeros == "middle") and not grouping.reordered
        weights.close()


def test_parts_of_a_checkpoints_matrix_are_grouped_as_the_whole(tmp_path: Path) -> None:
    config = {"quant_method": "awq", "bits": 4, "group_size": 64}
    weights = open_quantized(tmp_path, awq("m", random_codes(64, 128, 64)), config)
    whole = weights._stored["m.weight"]
    part = whole.rows("part", 8, 16)
    assert part.info.grouping == whole.info.grouping
    assert packing_of(part.info, "auto").scale_every == 2
    weights.close()
