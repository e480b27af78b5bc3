"""Modules of a checkpoint whose weights are quantized, each as one tensor under its usual name."""

from __future__ import annotations

from collections.abc import Mapping

from tokenmill.core.errors import ModelFileError
from tokenmill.models.quantized import awq, compressed, gptq
from tokenmill.models.quantized.config import AwqConfig, GptqConfig, Quantization
from tokenmill.models.quantized.matrix import PackedMatrix
from tokenmill.models.quantized.members import Module
from tokenmill.models.stored_weights import Stored, StoredTensor


def open_modules(
    stored: Mapping[str, StoredTensor], quantization: Quantization | None, label: str
) -> dict[str, Stored]:
    """Replaces the tensors of each quantized module, X.qweight and the like, by X.weight; others stay.

    Args:
        quantization: what the configuration says; None where it says nothing.
        label: the folder's name, for messages.

    Raises:
        ModelFileError: a module's tensors are incomplete, or contradict each other or the configuration.
    """
    modules: dict[str, dict[str, StoredTensor]] = {}
    result: dict[str, Stored] = {}
    for name, tensor in stored.items():
        module, _, part = name.rpartition(".")
        if _is_part(part, module, stored, quantization):
            modules.setdefault(module, {})[part] = tensor
        else:
            result[name] = tensor
    for name, tensors in modules.items():
        try:
            opened = _open(Module(name, tensors), quantization)
        except ModelFileError as error:
            raise ModelFileError(f"{label}: {error}") from None
        if opened.info.name in result:
            raise ModelFileError(f"{label}: tensor {opened.info.name} is there both plain and quantized")
        result[opened.info.name] = opened
    return result


def _is_part(
    part: str, module: str, stored: Mapping[str, StoredTensor], quantization: Quantization | None
) -> bool:
    """Whether a tensor belongs to a quantized matrix. What gives one away counts without a configuration."""
    if quantization is None:
        return part in ("qweight", "weight_packed")
    if isinstance(quantization, AwqConfig):
        return part in awq.PARTS
    if isinstance(quantization, GptqConfig):
        return part in gptq.PARTS
    if part == "weight":
        return f"{module}.weight_scale" in stored and f"{module}.weight_packed" not in stored
    return part in compressed.PARTS


def _open(module: Module, quantization: Quantization | None) -> PackedMatrix:
    if quantization is None:
        raise ModelFileError(f"{module.name} is quantized, but config.json has no quantization_config")
    if isinstance(quantization, AwqConfig):
        return awq.open_awq(module, quantization)
    if isinstance(quantization, GptqConfig):
        return gptq.open_gptq(module, quantization)
    scheme = quantization.scheme(module.name)
    if scheme is None:
        raise ModelFileError(f"{module.name} is quantized, but no group of config_groups says how")
    return compressed.open_compressed(module, scheme)
