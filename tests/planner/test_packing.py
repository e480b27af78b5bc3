"""What the planner decides for each stored matrix."""

from __future__ import annotations

import pytest

from tokenmill.models.tensor_info import Grouping, TensorInfo
from tokenmill.planner.packed import PackedFormat
from tokenmill.planner.packing import INT4, INT8, Packing, Quantization, gated_packing, packing_of, runs

BF16 = Packing(PackedFormat.BF16)


def stored(format: str, name: str = "model.layers.0.mlp.down_proj.weight") -> TensorInfo:
    return TensorInfo(name, (64, 512), format, 0)


def checkpoint(grouping: Grouping, columns: int = 512) -> TensorInfo:
    return TensorInfo("m.weight", (64, columns), "GPTQ4", 0, grouping)


@pytest.mark.parametrize(
    ("format", "auto", "int8", "int4"),
    [
        ("BF16", INT8, INT8, INT4),
        ("F32", INT8, INT8, INT4),
        ("Q4_0", Packing(PackedFormat.INT4), INT8, Packing(PackedFormat.INT4)),
        ("Q4_1", INT4, Packing(PackedFormat.INT8_OFFSET), INT4),
        (
            "Q4_K",
            Packing(PackedFormat.INT4_OFFSET, scale_bytes=4),
            Packing(PackedFormat.INT8_OFFSET, scale_bytes=4),
            Packing(PackedFormat.INT4_OFFSET, scale_bytes=4),
        ),
        ("Q5_0", INT8, INT8, INT4),
        ("Q5_1", Packing(PackedFormat.INT8_OFFSET), Packing(PackedFormat.INT8_OFFSET), INT4),
        ("Q6_K", INT8, INT8, INT4),
        ("Q8_0", INT8, INT8, INT4),
    ],
)
def test_formats_by_flag(format: str, auto: Packing, int8: Packing, int4: Packing) -> None:
    wanted: dict[Quantization, Packing] = {"auto": auto, "int8": int8, "int4": int4, "none": BF16}
    for flag, expected in wanted.items():
        assert packing_of(stored(format), flag) == expected


@pytest.mark.parametrize("name", ["model.embed_tokens.weight", "lm_head.weight"])
def test_rows_that_are_tokens_are_not_rounded_to_four_bits(name: str) -> None:
    assert packing_of(stored("BF16", name), "int4") == INT8
    assert packing_of(stored("Q8_0", name), "int4") == INT8
    assert packing_of(stored("Q4_1", name), "int4") == Packing(PackedFormat.INT4_OFFSET)


def test_routers_stay_in_float32() -> None:
    flags: tuple[Quantization, ...] = ("auto", "none", "int8", "int4")
    for flag in flags:
        router = stored("BF16", "model.layers.3.mlp.gate.weight")
        assert packing_of(router, flag) == Packing(PackedFormat.F32)


def test_checkpoints_share_scales_between_groups() -> None:
    symmetric = checkpoint(Grouping(4, 128))
    assert packing_of(symmetric, "auto") == Packing(PackedFormat.INT4, 4)
    zeros = checkpoint(Grouping(4, 128, offsets=True, half=False))
    assert packing_of(zeros, "auto") == Packing(PackedFormat.INT4_OFFSET, 4, 4)
    whole = checkpoint(Grouping(8, 500), columns=500)
    assert packing_of(whole, "auto") == Packing(PackedFormat.INT8, 16)


def test_groups_that_no_format_has_become_int8() -> None:
    assert packing_of(checkpoint(Grouping(4, 16)), "auto") == INT8
    assert packing_of(checkpoint(Grouping(4, 48), columns=480), "auto") == INT8
    assert packing_of(checkpoint(Grouping(4, 32, reordered=True)), "auto") == INT8


def test_neighbours_packed_alike_are_one_matrix() -> None:
    assert runs([INT8, INT8, INT8]) == [slice(0, 3)]
    assert runs([INT4, INT4, INT8]) == [slice(0, 2), slice(2, 3)]
    assert runs([INT4, INT8, INT4]) == [slice(0, 1), slice(1, 2), slice(2, 3)]


def test_gate_and_up_are_packed_alike() -> None:
    assert gated_packing(INT4, INT4) == INT4
    assert gated_packing(INT4, Packing(PackedFormat.INT4)) == INT8
