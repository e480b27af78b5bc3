"""What a folder says about how its weights are quantized: `quantization_config` of config.json, checked."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from tokenmill.core.bounds import show
from tokenmill.core.errors import ModelFileError
from tokenmill.models.fields import MAX_WIDTH, Fields
from tokenmill.models.json_file import read_json_object
from tokenmill.models.quantized.compressed_config import CompressedConfig, read_compressed

# Old GPTQ checkpoints describe themselves here and not in config.json.
GPTQ_FILE = "quantize_config.json"
MAX_CONFIG_BYTES = 4 << 20
MAX_LISTED_MODULES = 1 << 16


@dataclass(frozen=True)
class AwqConfig:
    """AWQ, version GEMM, four bits.

    Attributes:
        group: columns that share a scale; None is the whole row.
        zeros: zero points are stored.
    """

    group: int | None
    zeros: bool


@dataclass(frozen=True)
class GptqConfig:
    """GPTQ.

    Attributes:
        group: columns that share a scale; None is the whole row.
        act_order: columns were quantized in another order, so that each module must say its groups.
        version: 1 stores zero points less 1, 2 as they are.
    """

    bits: int
    group: int | None
    act_order: bool
    version: Literal[1, 2]


Quantization = AwqConfig | GptqConfig | CompressedConfig


def read_quantization(folder: Path) -> Quantization | None:
    """How the weights of a folder are quantized; None where they are not.

    Raises:
        ModelFileError: another method, or a parameter that is not supported; the message lists what is.
    """
    config = Fields("config.json", read_json_object(folder / "config.json", MAX_CONFIG_BYTES))
    if "quantization_config" in config:
        return _read(config.nested("quantization_config"))
    beside = folder / GPTQ_FILE
    if beside.exists():
        fields = Fields(GPTQ_FILE, read_json_object(beside, MAX_CONFIG_BYTES))
        return _read(fields, default_method="gptq")
    return None


def _read(fields: Fields, default_method: str | None = None) -> Quantization:
    method = fields.text("quant_method", default_method)
    if method == "awq":
        return _read_awq(fields)
    if method == "gptq":
        return _read_gptq(fields)
    if method in ("compressed-tensors", "compressed_tensors"):
        return read_compressed(fields)
    raise ModelFileError(
        f"{fields.label}: weights quantized with {show(method)} are not supported; supported are awq, gptq, "
        "compressed-tensors, unquantized weights and GGUF files"
    )


def _read_awq(fields: Fields) -> AwqConfig:
    # `format` is what newer files call it.
    key = "version" if "version" in fields else "format"
    if fields.text(key, "gemm").lower() != "gemm":
        raise fields.error(key, "gemm; other layouts of AWQ are not supported")
    if fields.text("backend", "auto") == "llm-awq":
        raise fields.error("backend", "another: its layout is not supported")
    _one_of_bits(fields, (4,))
    _check_skipped(fields)
    return AwqConfig(_group(fields), fields.flag("zero_point", True))


def _read_gptq(fields: Fields) -> GptqConfig:
    _refuse_present(fields, "dynamic", "different settings by module")
    _refuse_present(fields, "adapter", "an adapter on top of the weights")
    if fields.flag("is_marlin_format", False):
        raise fields.error("is_marlin_format", "false; supported formats are gptq and gptq_v2")
    _one_of(fields, "pack_dtype", ("int32",))
    key = "checkpoint_format" if "checkpoint_format" in fields else "format"
    _one_of(fields, key, ("gptq", "gptq_v2"))
    bits = _one_of_bits(fields, (2, 4, 8))
    fields.flag("sym", True)
    _check_skipped(fields)
    version: Literal[1, 2] = 2 if fields.text(key, "gptq") == "gptq_v2" else 1
    return GptqConfig(bits, _group(fields), fields.flag("desc_act", False), version)


def _one_of_bits(fields: Fields, allowed: tuple[int, ...]) -> int:
    bits = fields.integer("bits", 1, 32)
    if bits not in allowed:
        raise fields.error("bits", f"{' or '.join(map(str, allowed))}; others are not supported")
    return bits


def _group(fields: Fields) -> int | None:
    size = fields.integer("group_size", -1, MAX_WIDTH, 128)
    if size == 0:
        raise fields.error("group_size", f"from 1 to {MAX_WIDTH}, or -1 for whole rows")
    return None if size == -1 else size


def _one_of(fields: Fields, key: str, allowed: tuple[str, ...]) -> None:
    """An absent value is fine."""
    if fields.text(key, allowed[0]) not in allowed:
        raise fields.error(key, f"{' or '.join(allowed)}; others are not supported")


def _refuse_present(fields: Fields, key: str, what: str) -> None:
    if fields.get(key):
        raise ModelFileError(f"{fields.label}: {key} ({what}) is not supported")


def _check_skipped(fields: Fields) -> None:
    """The modules left unquantized.

    Only read, not followed: a module's tensors show it, and writers match these names each in their own way.
    """
    listed = fields.strings("modules_to_not_convert")
    if len(listed) > MAX_LISTED_MODULES:
        raise fields.error("modules_to_not_convert", f"at most {MAX_LISTED_MODULES} names")
