"""safetensors headers: equal to the safetensors package on good files, a clear refusal of every bad one."""

from __future__ import annotations

import json
import os
import random
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from support.model_files import raw_safetensors
from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile
from tokenmill.models.safetensors_file import INDEX_NAME, open_folder, read_header
from tokenmill.models.stored_weights import StoredTensor, StoredWeights

Entry = dict[str, Any]


def read_path(path: Path) -> dict[str, StoredTensor]:
    file = DataFile(path)
    try:
        return read_header(file)
    finally:
        file.close()


def read_bytes(folder: Path, content: bytes) -> dict[str, StoredTensor]:
    path = folder / "model.safetensors"
    path.write_bytes(content)
    return read_path(path)


def tensor(shape: list[int], start: int, end: int, dtype: str = "F32") -> Entry:
    return {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}


def test_values_are_those_of_the_safetensors_package(tmp_path: Path) -> None:
    torch.manual_seed(0)
    tensors = {
        "a": torch.randn(3, 5),
        "b": torch.randn(7).to(torch.bfloat16),
        "c": torch.randn(2, 3).to(torch.float16),
        "unused": torch.arange(4),
    }
    safetensors.torch.save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    stored, files = open_folder(tmp_path)
    assert {n: (s.info.shape, s.info.format) for n, s in stored.items()} == {
        "a": ((3, 5), "F32"),
        "b": ((7,), "BF16"),
        "c": ((2, 3), "F16"),
        "unused": ((4,), "I64"),
    }
    weights = StoredWeights({name: stored[name] for name in "abc"}, files)
    for name in "abc":
        torch.testing.assert_close(weights.load(name, torch.float32), tensors[name].float(), rtol=0, atol=0)
    assert weights.nbytes == (tmp_path / "model.safetensors").stat().st_size
    weights.close()


BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "0 bytes are no safetensors file"),
    "seven bytes": (bytes(7), "7 bytes are no safetensors file"),
    "length beyond the end": (raw_safetensors({}, length=100), "a header of 100 bytes in a file of 10"),
    "length of 2^63": (raw_safetensors({}, length=2**63), f"a header of {2**63} bytes; at most"),
    "no JSON": (raw_safetensors("{]"), "not valid JSON"),
    "no UTF-8": (b"\x02" + bytes(7) + b"\xff\xfe", "not valid JSON"),
    "a list": (raw_safetensors([]), "a JSON object is needed, not a list"),
    "deep nesting": (raw_safetensors("[" * 100_000), "not valid JSON"),
    "a number of many digits": (raw_safetensors('{"a": ' + "9" * 10_000 + "}"), "not valid JSON"),
    "tensor twice": (
        raw_safetensors(
            '{"a": ' + json.dumps(tensor([1], 0, 4)) + ', "a": ' + json.dumps(tensor([1], 0, 4)) + "}"
        ),
        "'a' is listed twice",
    ),
    "key twice": (raw_safetensors('{"a": {"dtype": "F32", "dtype": "F16"}}'), "'dtype' is listed twice"),
    "entry no object": (raw_safetensors({"a": 3}), "tensor 'a': its entry is no JSON object"),
    "no dtype": (raw_safetensors({"a": {}}), "dtype is missing"),
    "unknown dtype": (
        raw_safetensors({"a": tensor([1], 0, 4, "F128")}),
        "unknown dtype 'F128'; known are BOOL",
    ),
    "no shape": (raw_safetensors({"a": {"dtype": "F32"}}), "shape must be a list"),
    "negative size": (raw_safetensors({"a": tensor([-1], 0, 4)}), "shape must hold integers from 0"),
    "size of true": (raw_safetensors({"a": tensor([True], 0, 4)}), "shape must hold integers"),
    "size of 1.0": (
        raw_safetensors({"a": {**tensor([], 0, 4), "shape": [1.0]}}, bytes(4)),
        "shape must hold",
    ),
    "many dimensions": (raw_safetensors({"a": tensor([1] * 9, 0, 4)}), "shape must be a list of at most 8"),
    "one offset": (
        raw_safetensors({"a": {**tensor([1], 0, 4), "data_offsets": [0]}}),
        "must be two integers",
    ),
    "offsets that overflow": (
        raw_safetensors({"a": tensor([1], 0, 2**63)}),
        "data_offsets must hold integers",
    ),
    "sizes that overflow": (raw_safetensors({"a": tensor([2**62, 2**62], 0, 0)}), "its offsets span 0"),
    "span too short": (raw_safetensors({"a": tensor([2], 0, 4)}, bytes(4)), r"F32 \[2\] takes 8 bytes"),
    "offsets reversed": (raw_safetensors({"a": tensor([1], 4, 0)}, bytes(4)), "its offsets span -4"),
    "data beyond the end": (raw_safetensors({"a": tensor([1], 4, 8)}, bytes(7)), "would end at byte"),
    "overlap": (
        raw_safetensors({"a": tensor([2], 0, 8), "b": tensor([1], 4, 8)}, bytes(8)),
        "tensors 'a' and 'b' overlap",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_and_the_message_says_why(name: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        read_bytes(tmp_path, content)
    assert str(caught.value).startswith("model.safetensors: ")


def test_empty_tensors_scalars_and_holes_are_fine(tmp_path: Path) -> None:
    header = {
        "__metadata__": {"format": "pt"},
        "scalar": tensor([], 8, 12),
        "none": tensor([0, 5], 8, 8),
        "b": tensor([2], 12, 20),
    }
    assert list(read_bytes(tmp_path, raw_safetensors(header, bytes(20)))) == ["scalar", "none", "b"]


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    content = safetensors.torch.save({"a": torch.ones(3), "b": torch.ones(2, 2)})
    path = tmp_path / "cut.safetensors"
    path.write_bytes(content)
    for length in reversed(range(len(content))):
        os.truncate(path, length)
        with pytest.raises(ModelFileError):
            read_path(path)


def test_damaged_headers_are_refused_or_read_in_bounded_memory(tmp_path: Path) -> None:
    content = safetensors.torch.save({f"tensor.{n}": torch.ones(n, 3) for n in range(1, 12)})
    header_length = 8 + int.from_bytes(content[:8], "little")
    chance = random.Random(3)
    outcomes = {"read": 0, "refused": 0}
    path = tmp_path / "damaged.safetensors"
    path.write_bytes(content)
    tracemalloc.start()
    with path.open("r+b", buffering=0) as out:
        for _ in range(2000):
            broken = bytearray(content)
            for _ in range(chance.randint(1, 3)):
                broken[chance.randrange(header_length)] = chance.choice(b'0123456789{}[],:"F\xff\x00')
            out.seek(0)
            out.write(broken)
            try:
                read_path(path)
                outcomes["read"] += 1
            except ModelFileError:
                outcomes["refused"] += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert min(outcomes.values()) > 50  # the damage reaches both
    assert peak < 4 << 20


def write_shards(folder: Path, index: dict[str, str], shards: dict[str, dict[str, Any]]) -> None:
    for name, tensors in shards.items():
        safetensors.torch.save_file(tensors, folder / name)
    (folder / INDEX_NAME).write_text(json.dumps({"metadata": {"total_size": 1}, "weight_map": index}))


def test_shards_are_found_by_the_index(tmp_path: Path) -> None:
    one, two = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
    shards = {one: {"a": torch.zeros(2)}, two: {"b": torch.ones(3), "a": torch.ones(2)}}
    write_shards(tmp_path, {"a": two, "b": two}, shards)
    stored, files = open_folder(tmp_path)
    assert {name: s.file.name for name, s in stored.items()} == {"a": two, "b": two}
    assert [file.name for file in files] == [two]


def test_a_single_file_wins_over_an_index(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "model.safetensors")
    write_shards(tmp_path, {"b": "other.safetensors"}, {"other.safetensors": {"b": torch.zeros(2)}})
    assert list(open_folder(tmp_path)[0]) == ["a"]


def test_without_an_index_all_files_are_taken(tmp_path: Path) -> None:
    for name in ("x", "y"):
        safetensors.torch.save_file({name: torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    assert list(open_folder(tmp_path)[0]) == ["x", "y"]


def test_a_tensor_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("x", "y"):
        safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ModelFileError, match=r"y\.safetensors: tensor 'a' is also in x\.safetensors"):
        open_folder(tmp_path)


@pytest.mark.parametrize(
    "place",
    [
        "../secret.safetensors",
        "/etc/x.safetensors",
        "a/b.safetensors",
        "x.bin",
        "",
        None,
        3,
        "\0.safetensors",
    ],
)
def test_an_index_leads_nowhere_but_to_its_own_folder(tmp_path: Path, place: Any) -> None:
    write_shards(tmp_path, {"a": place}, {})
    with pytest.raises(
        ModelFileError, match=r"tensor 'a' is said to be in .*no \.safetensors file of this folder"
    ):
        open_folder(tmp_path)


def test_an_index_that_names_an_absent_file_or_tensor_is_refused(tmp_path: Path) -> None:
    write_shards(tmp_path, {"a": "x.safetensors"}, {})
    with pytest.raises(ModelFileError, match=r"x\.safetensors: cannot be opened \(No such file"):
        open_folder(tmp_path)
    write_shards(tmp_path, {"a": "x.safetensors"}, {"x.safetensors": {"b": torch.zeros(1)}})
    with pytest.raises(ModelFileError, match=r"x\.safetensors: tensor 'a' is missing; the index says"):
        open_folder(tmp_path)


def test_a_folder_without_weights_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="0 weight files"):
        open_folder(tmp_path)


def test_files_are_closed_when_one_of_them_is_broken(tmp_path: Path) -> None:
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "x.safetensors")
    (tmp_path / "y.safetensors").write_bytes(b"broken")
    before = len(list(Path("/proc/self/fd").iterdir()))
    with pytest.raises(ModelFileError):
        open_folder(tmp_path)
    assert len(list(Path("/proc/self/fd").iterdir())) == before
