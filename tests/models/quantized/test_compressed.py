"""compressed-tensors checkpoints against the package that writes them: equal to its own decompression."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.compressors.pack_quantized import pack_to_int32
from compressed_tensors.quantization import QuantizationArgs, QuantizationConfig, QuantizationScheme

from support.packers import open_quantized
from tokenmill.core.errors import ModelFileError
from tokenmill.models.quantized import compressed

ROWS, COLUMNS = 52, 192  # rows fill no whole words of zero points


def scheme(
    bits: int, strategy: str, *, group: int | None = None, symmetric: bool = True
) -> QuantizationScheme:
    weights = QuantizationArgs(num_bits=bits, strategy=strategy, group_size=group, symmetric=symmetric)
    inputs = QuantizationArgs(num_bits=8, strategy="token", dynamic=True) if bits == 8 else None
    return QuantizationScheme(targets=["Linear"], weights=weights, input_activations=inputs)


def config(
    stored: str, *schemes: QuantizationScheme, ignore: tuple[str, ...] = ("lm_head",)
) -> dict[str, Any]:
    """As the package writes it to config.json."""
    groups = {f"group_{number}": scheme for number, scheme in enumerate(schemes)}
    whole = QuantizationConfig(
        config_groups=groups, format=stored, ignore=list(ignore), quantization_status="compressed"
    )
    result: dict[str, Any] = whole.model_dump(mode="json")
    return result


def tensors_of(
    name: str,
    stored: str,
    made: QuantizationScheme,
    dtype: torch.dtype = torch.float32,
    columns: int = COLUMNS,
) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
    """A random matrix compressed by the package, and what the package makes of it again."""
    args = made.weights
    assert args is not None
    random = torch.Generator().manual_seed(5)
    weight = torch.randn(ROWS, columns, generator=random).to(dtype)
    shape = {"tensor": (1,), "channel": (ROWS, 1)}.get(
        str(args.strategy), (ROWS, columns // (args.group_size or columns))
    )
    low, high = -(1 << (args.num_bits - 1)), (1 << (args.num_bits - 1)) - 1
    state = {"weight": weight, "weight_scale": (torch.rand(shape, generator=random) * 0.03 + 0.01).to(dtype)}
    if not args.symmetric:
        zeros = torch.randint(low, high + 1, shape, generator=random)
        state["weight_zero_point"] = zeros.to(torch.int8)
    compressor = BaseCompressor.get_value_from_registry(stored)
    packed = compressor.compress(state, made)
    return {f"{name}.{part}": t for part, t in packed.items()}, compressor.decompress(packed, made)["weight"]


CASES = [
    ("pack-quantized", 4, "group", 32),
    ("pack-quantized", 4, "group", 64),
    ("pack-quantized", 4, "channel", None),
    ("pack-quantized", 8, "group", 64),
    ("pack-quantized", 8, "channel", None),
    ("int-quantized", 8, "channel", None),
    ("int-quantized", 8, "group", 64),
    ("int-quantized", 8, "tensor", None),
    ("naive-quantized", 8, "channel", None),
    ("naive-quantized", 4, "group", 32),
]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("symmetric", [True, False], ids=["symmetric", "zero points"])
@pytest.mark.parametrize(("stored", "bits", "strategy", "group"), CASES)
def test_numbers_are_those_of_the_package(
    stored: str,
    bits: int,
    strategy: str,
    group: int | None,
    symmetric: bool,
    dtype: torch.dtype,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The package computes in the type of the scales; (code - zero) fits all of them, so that its one rounding
    is that of the float32 product."""
    monkeypatch.setattr(compressed, "BLOCK_NUMBERS", 1000)
    made = scheme(bits, strategy, group=group, symmetric=symmetric)
    tensors, expected = tensors_of("m", stored, made, dtype)
    weights = open_quantized(tmp_path, tensors, config(stored, made))
    info = weights.tensors["m.weight"]
    assert (info.shape, info.format) == ((ROWS, COLUMNS), "CT4" if stored[0] == "p" and bits == 4 else "CT8")
    assert info.nbytes == sum(tensor.nbytes for tensor in tensors.values())
    torch.testing.assert_close(weights.load("m.weight", dtype), expected, rtol=0, atol=0)
    grouped = weights.grouped("m.weight")
    assert grouped is not None
    assert (grouped.group, grouped.symmetric) == (group or COLUMNS, symmetric)
    torch.testing.assert_close(grouped.dequantize().to(dtype), expected, rtol=0, atol=0)
    weights.close()


def test_one_packed_scale_for_a_matrix(tmp_path: Path) -> None:
    made = scheme(4, "tensor")
    tensors, expected = tensors_of("m", "pack-quantized", made)
    weights = open_quantized(tmp_path, tensors, config("pack-quantized", made))
    torch.testing.assert_close(weights.load("m.weight", torch.float32), expected, rtol=0, atol=0)
    weights.close()


@pytest.mark.parametrize("columns", [36, 33, 1])
def test_rows_that_end_within_a_word(columns: int, tmp_path: Path) -> None:
    made = scheme(4, "channel", symmetric=False)
    tensors, expected = tensors_of("m", "pack-quantized", made, columns=columns)
    weights = open_quantized(tmp_path, tensors, config("pack-quantized", made))
    torch.testing.assert_close(weights.load("m.weight", torch.float32), expected, rtol=0, atol=0)
    weights.close()


def test_columns_in_activation_order(tmp_path: Path) -> None:
    """Codes and scales worked out beside the package, which no longer writes this: (code - 8) * scale of the
    column's group."""
    random = np.random.default_rng(6)
    codes, scales = random.integers(-8, 8, (16, 64)), random.uniform(0.01, 0.1, (16, 2)).astype(np.float32)
    order = random.permutation(np.repeat([0, 1], 32))
    tensors = {
        "m.weight_packed": pack_to_int32(torch.from_numpy(codes.astype(np.int8)), 4),
        "m.weight_scale": torch.from_numpy(scales),
        "m.weight_shape": torch.tensor([16, 64]),
        "m.weight_g_idx": torch.from_numpy(order.astype(np.int32)),
    }
    weights = open_quantized(tmp_path, tensors, config("pack-quantized", scheme(4, "group", group=32)))
    expected = codes.astype(np.float32) * scales[:, order]
    np.testing.assert_array_equal(weights.load("m.weight", torch.float32).numpy(), expected)
    grouped = weights.grouped("m.weight")
    assert grouped is not None
    np.testing.assert_array_equal(grouped.dequantize().numpy(), expected)
    weights.close()


def test_each_module_is_read_by_the_scheme_that_names_it_best(tmp_path: Path) -> None:
    """A name before a pattern before a class; each with a layout of its own."""
    linear, pattern, named = (
        scheme(4, "group", group=32),
        scheme(8, "channel"),
        scheme(4, "channel", symmetric=False),
    )
    pattern.targets, named.targets = [r"re:.*down_proj$"], ["layers.1.down_proj"]
    pattern.format, linear.format, named.format = "int-quantized", "pack-quantized", "pack-quantized"
    tensors: dict[str, torch.Tensor] = {}
    expected = {}
    for name, stored, made in (
        ("layers.0.up_proj", "pack-quantized", linear),
        ("layers.0.down_proj", "int-quantized", pattern),
        ("layers.1.down_proj", "pack-quantized", named),
    ):
        packed, expected[f"{name}.weight"] = tensors_of(name, stored, made)
        tensors |= packed
    weights = open_quantized(tmp_path, tensors, config("mixed-precision", linear, pattern, named))
    for name, numbers in expected.items():
        torch.testing.assert_close(weights.load(name, torch.float32), numbers, rtol=0, atol=0)
    weights.close()


def test_a_table_of_embeddings_is_a_class_of_its_own(tmp_path: Path) -> None:
    linear, embedding = scheme(4, "group", group=32), scheme(8, "channel")
    embedding.targets, embedding.input_activations = ["Embedding"], None
    tensors, expected = tensors_of("model.embed_tokens", "pack-quantized", embedding)
    weights = open_quantized(tmp_path, tensors, config("pack-quantized", linear, embedding))
    found = weights.load("model.embed_tokens.weight", torch.float32)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)
    weights.close()


def test_modules_left_out_are_plain(tmp_path: Path) -> None:
    made = scheme(4, "group", group=32)
    tensors, _ = tensors_of("m", "pack-quantized", made)
    plain = torch.randn(8, 32)
    weights = open_quantized(tmp_path, {**tensors, "lm_head.weight": plain}, config("pack-quantized", made))
    torch.testing.assert_close(weights.load("lm_head.weight", torch.float32), plain, rtol=0, atol=0)
    weights.close()


BAD: dict[str, tuple[dict[str, torch.Tensor | None], str]] = {
    "no shape": ({"weight_shape": None}, r"tensor m\.weight_shape is missing"),
    "no scales": ({"weight_scale": None}, r"tensor m\.weight_scale is missing"),
    "no zero points": ({"weight_zero_point": None}, r"tensor m\.weight_zero_point is missing"),
    "no codes": ({"weight_packed": None}, r"tensor m\.weight_packed is missing"),
    "a shape of other rows": (
        {"weight_shape": torch.tensor([51, 192])},
        r"tensor m\.weight_shape says \[51, 192\]; weight_packed has 52 rows",
    ),
    "a shape of other columns": (
        {"weight_shape": torch.tensor([52, 256])},
        r"tensor m\.weight_scale has shape \[52, 6\]; for CT4 of \[52, 256\] in groups of 32 it must be \[52, 8\]",
    ),
    "no columns": ({"weight_shape": torch.tensor([52, 0])}, r"says \[52, 0\]"),
    "columns below 0": ({"weight_shape": torch.tensor([52, -192])}, r"says \[52, -192\]"),
    "columns beyond all bounds": (
        {"weight_shape": torch.tensor([52, 2**62])},
        r"m: a matrix of \[52, 4611686018427387904\]; at most \[16777216, 1048576\] is allowed",
    ),
    "a shape of three": (
        {"weight_shape": torch.tensor([52, 192, 1])},
        r"weight_shape must be two numbers in I64",
    ),
    "groups that do not fill a row": (
        {"weight_shape": torch.tensor([52, 190])},
        r"rows of 190 numbers are no whole",
    ),
    "zero points of other rows": (
        {"weight_zero_point": torch.zeros(6, 6, dtype=torch.int32)},
        r"tensor m\.weight_zero_point has shape \[6, 6\]; .* it must be \[7, 6\]",
    ),
    "codes in bytes": (
        {"weight_packed": torch.zeros(52, 24, dtype=torch.int8)},
        r"tensor m\.weight_packed is I8; it must be I32",
    ),
}


@pytest.mark.parametrize("name", BAD)
def test_tensors_that_do_not_fit_are_refused_by_name(name: str, tmp_path: Path) -> None:
    changes, message = BAD[name]
    made = scheme(4, "group", group=32, symmetric=False)
    tensors, _ = tensors_of("m", "pack-quantized", made)
    for part, tensor in changes.items():
        if tensor is None:
            del tensors[f"m.{part}"]
        else:
            tensors[f"m.{part}"] = tensor
    with pytest.raises(ModelFileError, match=message):
        open_quantized(tmp_path, tensors, config("pack-quantized", made))


def test_eight_bit_weights_in_a_float_type_are_refused(tmp_path: Path) -> None:
    made = scheme(8, "channel")
    tensors, _ = tensors_of("m", "int-quantized", made)
    tensors["m.weight"] = tensors["m.weight"].float().to(torch.float8_e4m3fn)
    with pytest.raises(ModelFileError, match=r"tensor m\.weight is F8_E4M3; it must be I8"):
        open_quantized(tmp_path, tensors, config("int-quantized", made))


@pytest.mark.parametrize(
    ("targets", "ignore"),
    [
        (["Linear"], ("m",)),
        (["Linear"], ("re:m",)),
        (["Linear"], ("Linear",)),
        (["Embedding"], ()),
        (["n"], ()),
    ],
)
def test_a_quantized_module_that_no_group_describes_is_refused(
    targets: list[str], ignore: tuple[str, ...], tmp_path: Path
) -> None:
    made = scheme(4, "group", group=32)
    tensors, _ = tensors_of("m", "pack-quantized", made)
    made.targets = targets
    with pytest.raises(
        ModelFileError, match=re.escape("m is quantized, but no group of config_groups says how")
    ):
        open_quantized(tmp_path, tensors, config("pack-quantized", made, ignore=ignore))


@pytest.mark.parametrize(("stored", "bits"), [("pack-quantized", 4), ("int-quantized", 8)])
def test_a_model_that_says_frozen_is_read_where_its_tensors_are_compressed(
    stored: str, bits: int, tmp_path: Path
) -> None:
    made = scheme(bits, "channel")
    tensors, expected = tensors_of("m", stored, made)
    frozen = {**config(stored, made), "quantization_status": "frozen"}
    weights = open_quantized(tmp_path, tensors, frozen)
    torch.testing.assert_close(weights.load("m.weight", torch.float32), expected, rtol=0, atol=0)
    weights.close()


def test_a_frozen_model_that_is_not_compressed_is_refused(tmp_path: Path) -> None:
    frozen = {**config("int-quantized", scheme(8, "channel")), "quantization_status": "frozen"}
    tensors = {"m.weight": torch.ones(ROWS, COLUMNS), "m.weight_scale": torch.ones(ROWS, 1)}
    with pytest.raises(ModelFileError, match=r"m\.weight is F32; it must be I8"):
        open_quantized(tmp_path, tensors, frozen)
