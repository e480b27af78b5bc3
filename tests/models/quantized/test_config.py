"""What a folder says about its quantization: everything that is not supported is refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tokenmill.core.errors import ModelFileError
from tokenmill.models.quantized.config import (
    GPTQ_FILE,
    AwqConfig,
    GptqConfig,
    Quantization,
    read_quantization,
)

AWQ = {"quant_method": "awq", "bits": 4, "group_size": 128, "zero_point": True, "version": "gemm"}
GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": False, "sym": True}
WEIGHTS = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 128}
COMPRESSED = {
    "quant_method": "compressed-tensors",
    "format": "pack-quantized",
    "quantization_status": "compressed",
    "config_groups": {"group_0": {"targets": ["Linear"], "weights": WEIGHTS}},
    "ignore": ["lm_head"],
}


def read(folder: Path, quantization: object, **files: object) -> Quantization | None:
    outer = {} if quantization is None else {"quantization_config": quantization}
    (folder / "config.json").write_text(json.dumps(outer))
    for name, content in files.items():
        (folder / f"{name}.json").write_text(json.dumps(content))
    return read_quantization(folder)


def grouped(**weights: object) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": {**WEIGHTS, **weights}}
    return {**COMPRESSED, "config_groups": {"group_0": group}}


def test_a_folder_that_says_nothing_is_not_quantized(tmp_path: Path) -> None:
    assert read(tmp_path, None) is None


def test_awq_as_its_writers_say_it(tmp_path: Path) -> None:
    assert read(tmp_path, AWQ) == AwqConfig(group=128, zeros=True)
    # Upper case, whole rows, modules by parts of their names; newer files say format and backend.
    older = {**AWQ, "version": "GEMM", "group_size": -1, "modules_to_not_convert": ["gate"]}
    assert read(tmp_path, older) == AwqConfig(group=None, zeros=True)
    newer = {"quant_method": "awq", "bits": 4, "format": "gemm", "backend": "auto", "zero_point": False}
    assert read(tmp_path, newer) == AwqConfig(group=128, zeros=False)


def test_gptq_as_its_writers_say_it(tmp_path: Path) -> None:
    assert read(tmp_path, GPTQ) == GptqConfig(bits=4, group=128, act_order=False, version=1)
    second = {
        **GPTQ,
        "bits": 8,
        "desc_act": True,
        "group_size": -1,
        "checkpoint_format": "gptq_v2",
        "dynamic": {},
    }
    assert read(tmp_path, second) == GptqConfig(bits=8, group=None, act_order=True, version=2)
    assert read(tmp_path, {**GPTQ, "format": "gptq_v2"}) == GptqConfig(4, 128, False, 2)


def test_old_gptq_checkpoints_have_a_file_of_their_own(tmp_path: Path) -> None:
    said = {"bits": 4, "group_size": 64, "desc_act": True, "sym": False, "model_name_or_path": None}
    assert read(tmp_path, None, quantize_config=said) == GptqConfig(4, 64, True, 1)
    # config.json goes first.
    assert read(tmp_path, AWQ) == AwqConfig(group=128, zeros=True)


def test_a_broken_file_beside_config_json_is_named(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=rf"^{GPTQ_FILE}: bits is 3; it must be 2 or 4 or 8"):
        read(tmp_path, None, quantize_config={"bits": 3})


METHODS = ["bitsandbytes", "fp8", "hqq", "aqlm", "marlin", "auto-round", "modelopt", "", "AWQ\n" * 99]
BAD: dict[str, tuple[object, str]] = {
    **{
        f"method {name[:20]!r}": (
            {"quant_method": name},
            "are not supported; supported are awq, gptq, compressed-tensors, unquantized weights and GGUF files$",
        )
        for name in METHODS
    },
    "no method": ({"bits": 4}, "quant_method is missing"),
    "a list": ([], r"quantization_config is \[\]; it must be a mapping"),
    "awq version": ({**AWQ, "version": "gemv"}, "version is 'gemv'; it must be gemm"),
    "awq format": ({**AWQ, "version": None, "format": "gemv_fast"}, "format is 'gemv_fast'; it must be gemm"),
    "awq backend": ({**AWQ, "backend": "llm-awq"}, "backend is 'llm-awq'"),
    "awq bits": ({**AWQ, "bits": 8}, "bits is 8; it must be 4"),
    "awq zero points": ({**AWQ, "zero_point": "yes"}, "zero_point is 'yes'; it must be true or false"),
    "awq modules": (
        {**AWQ, "modules_to_not_convert": "gate"},
        "modules_to_not_convert is 'gate'; it must be a list",
    ),
    "group of 0": ({**AWQ, "group_size": 0}, "group_size is 0; it must be from 1 to 1048576, or -1"),
    "group below -1": ({**GPTQ, "group_size": -2}, "group_size is -2"),
    "group beyond all bounds": ({**GPTQ, "group_size": 2**40}, "group_size is 1099511627776"),
    "group of text": ({**GPTQ, "group_size": "128"}, "group_size is '128'"),
    "three bits": ({**GPTQ, "bits": 3}, "bits is 3; it must be 2 or 4 or 8; others are not supported"),
    "no bits": ({**GPTQ, "bits": None}, "bits is missing"),
    "bits of truth": ({**GPTQ, "bits": True}, "bits is True"),
    "gptq format": (
        {**GPTQ, "checkpoint_format": "marlin"},
        "checkpoint_format is 'marlin'; it must be gptq or gptq_v2",
    ),
    "gptq marlin": ({**GPTQ, "is_marlin_format": True}, "is_marlin_format is True; it must be false"),
    "gptq words": ({**GPTQ, "pack_dtype": "int16"}, "pack_dtype is 'int16'; it must be int32"),
    "gptq by layer": (
        {**GPTQ, "dynamic": {"-:.*down.*": {}}},
        r"dynamic \(different settings by module\) is not supp",
    ),
    "gptq adapter": (
        {**GPTQ, "adapter": {"name": "lora"}},
        r"adapter \(an adapter on top of the weights\) is not",
    ),
    "gptq order": ({**GPTQ, "desc_act": 1}, "desc_act is 1; it must be true or false"),
    "fp8": (
        {
            **grouped(num_bits=8, type="float", strategy="channel", group_size=None),
            "format": "float-quantized",
        },
        "format 'float-quantized' is not supported; supported are pack-quantized, int-quantized, naive-quantized",
    ),
    "nvfp4": (
        {**COMPRESSED, "format": "nvfp4-pack-quantized"},
        "format 'nvfp4-pack-quantized' is not supported",
    ),
    "sparse format": ({**COMPRESSED, "format": "marlin-24"}, "format 'marlin-24' is not supported"),
    "no format": ({**COMPRESSED, "format": None}, "format '' is not supported"),
    "float weights": (
        grouped(type="float"),
        "4-bit weights of type 'float' are not supported; supported are int",
    ),
    "six bits": (grouped(num_bits=6), "6-bit weights of type 'int' are not supported"),
    "block strategy": (grouped(strategy="block"), "strategy is 'block'; it must be tensor, channel or group"),
    "groups without size": (grouped(group_size=None), "group_size is missing; it must be from 1 to"),
    "groups of -1": (grouped(group_size=-1), "group_size is -1; it must be from 1 to"),
    "packed zero point for all": (grouped(strategy="tensor", symmetric=False), "strategy is 'tensor'"),
    "no groups": ({**COMPRESSED, "config_groups": {}}, "0 config_groups; 1 to 64 are allowed"),
    "many groups": (
        {**COMPRESSED, "config_groups": {str(n): {} for n in range(65)}},
        "65 config_groups; 1 to 64 are allowed",
    ),
    "a group by its name": (
        {**COMPRESSED, "config_groups": {"W4A16": ["Linear"]}},
        "W4A16 is .* must be a mapping",
    ),
    "activations alone": (
        {**COMPRESSED, "config_groups": {"a": {"targets": ["Linear"]}}},
        "no group .* has weights",
    ),
    "not yet quantized": ({**COMPRESSED, "quantization_status": "calibration"}, "status is 'calibration'"),
    "transforms": (
        {**COMPRESSED, "transform_config": {"config_groups": {}}},
        "transform_config is not supported",
    ),
    "pruned experts": (
        {**COMPRESSED, "moe_sparsity_config": {"method": "prune"}},
        "moe_sparsity_config is not supp",
    ),
    "sparse weights": (
        {**COMPRESSED, "sparsity_config": {"format": "sparse-24-bitmask"}},
        "sparsity_config: format is 'sparse-24-bitmask'; it must be dense",
    ),
    "ignored by number": ({**COMPRESSED, "ignore": [3]}, "ignore is .* must be a list of strings"),
}


@pytest.mark.parametrize("name", BAD)
def test_what_is_not_supported_is_refused_by_name(name: str, tmp_path: Path) -> None:
    quantization, message = BAD[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        read(tmp_path, quantization)
    assert str(caught.value).startswith("config.json: ")
    assert len(str(caught.value)) < 400 and "\n" not in str(caught.value)


def test_what_is_about_computing_is_left_to_the_engine(tmp_path: Path) -> None:
    """Activations and the KV cache stay in the engine's own type, whatever others would do with them."""
    group = {
        "targets": ["Linear"],
        "weights": {**WEIGHTS, "strategy": "channel", "group_size": None, "num_bits": 8, "observer": "mse"},
        "input_activations": {"num_bits": 8, "type": "int", "dynamic": True, "strategy": "token"},
        "output_activations": None,
    }
    said = {
        **COMPRESSED,
        "format": "int-quantized",
        "config_groups": {"group_0": group},
        "kv_cache_scheme": {"num_bits": 8, "type": "float"},
        "sparsity_config": {"format": "dense"},
        "transform_config": {},
    }
    assert read(tmp_path, said) is not None
