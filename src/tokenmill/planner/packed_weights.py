"""Bytes of a model's weights as the native step program holds them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from tokenmill.models.spec import LayerSpec, ModelSpec
from tokenmill.models.tensor_info import TensorInfo
from tokenmill.planner.packing import Quantization, gated_packing, gated_rows, packing_of, runs

_FLOAT_BYTES = 4


def packed_weight_bytes(spec: ModelSpec, tensors: Mapping[str, TensorInfo], wanted: Quantization) -> int:
    """Packed matrices, and norms and biases in float32.

    Args:
        tensors: of the file, by name.
    """
    matrices = sum(
        gated_bytes(tensors, names, wanted) if gated else row_bytes(tensors, names, wanted)
        for names, gated in products(spec)
    )
    return matrices + _vector_bytes(spec)


def products(spec: ModelSpec) -> Iterator[tuple[tuple[str, ...], bool]]:
    """Names of the matrices that are packed together, and whether they are gate and up of a gated product."""
    yield ("model.embed_tokens.weight",), False
    for number, layer in enumerate(spec.layers):
        at = f"model.layers.{number}."
        yield tuple(f"{at}self_attn.{name}_proj.weight" for name in ("q", "k", "v")), False
        yield (f"{at}self_attn.o_proj.weight",), False
        for mlp in _mlps(at, layer):
            yield (f"{mlp}gate_proj.weight", f"{mlp}up_proj.weight"), True
            yield (f"{mlp}down_proj.weight",), False
        if layer.experts is not None:
            yield (f"{at}mlp.gate.weight",), False
    if not spec.tied_embeddings:
        yield ("lm_head.weight",), False


def row_bytes(tensors: Mapping[str, TensorInfo], names: tuple[str, ...], wanted: Quantization) -> int:
    """Of matrices whose rows follow one another: one packed matrix for each run of one packing."""
    infos = [tensors[name] for name in names]
    packings = [packing_of(info, wanted) for info in infos]
    total = 0
    for run in runs(packings):
        rows = sum(info.shape[0] for info in infos[run])
        total += packings[run.start].shape(rows, infos[0].shape[1]).nbytes
    return total


def gated_bytes(tensors: Mapping[str, TensorInfo], names: tuple[str, ...], wanted: Quantization) -> int:
    gate, up = (tensors[name] for name in names)
    packing = gated_packing(packing_of(gate, wanted), packing_of(up, wanted))
    return packing.shape(gated_rows(gate.shape[0]), gate.shape[1]).nbytes


def _mlps(at: str, layer: LayerSpec) -> Iterator[str]:
    if layer.experts is None:
        yield f"{at}mlp."
        return
    for expert in range(layer.experts.count):
        yield f"{at}mlp.experts.{expert}."


def _vector_bytes(spec: ModelSpec) -> int:
    """Norms and biases. Biases of gate and up are padded as their rows are."""
    total = 0
    for tensor in spec.tensors():
        if len(tensor.shape) == 1:
            size = tensor.shape[0]
            if tensor.name.endswith(("gate_proj.bias", "up_proj.bias")):
                size = gated_rows(size) // 2
            total += size * _FLOAT_BYTES
    return total
