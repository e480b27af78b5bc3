"""A GGUF model cut into parts: opened by its first, complete or not at all."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
import torch

from support.model_files import I32, U16, entry, gguf_tensors, key, raw_gguf, write_gguf
from tokenmill.core.errors import ModelFileError
from tokenmill.models.gguf_parts import MAX_PARTS, open_parts, part_names
from tokenmill.models.source import open_model


def split_gguf(folder: Path, each: int = 8) -> Path:
    """The small Llama of 21 tensors in parts by the gguf package; its first part."""
    write_gguf(folder / "small.gguf", split_max_tensors=each)
    return min(folder.glob("small-*.gguf"))


def part(folder: Path, name: str, tensors: list[str], *, number: int, count: int, total: int = 2) -> Path:
    """A part of `count` by hand, with tensors of one number each."""
    keys = [
        key("split.no", U16, struct.pack("<H", number)),
        key("split.count", U16, struct.pack("<H", count)),
        key("split.tensors.count", I32, struct.pack("<i", total)),
    ]
    entries = [entry(tensor, (1,), 0, 32 * place) for place, tensor in enumerate(tensors)]
    path = folder / name
    path.write_bytes(raw_gguf(keys, entries, bytes(32 * len(tensors))))
    return path


def refused(path: Path, message: str) -> None:
    with pytest.raises(ModelFileError, match=message):
        open_parts(path)


def test_a_model_in_parts_is_the_model_in_one_file(tmp_path: Path) -> None:
    parts = open_model(split_gguf(tmp_path))
    whole = open_model(write_gguf(tmp_path / "whole.gguf"))
    assert len(list(tmp_path.glob("small-*"))) == 3
    assert parts.name == "small"
    assert parts.spec == whole.spec
    assert parts.weights.nbytes == sum(path.stat().st_size for path in tmp_path.glob("small-*"))
    for name in whole.weights.tensors:
        found, expected = (m.weights.load(name, torch.float32) for m in (parts, whole))
        torch.testing.assert_close(found, expected, rtol=0, atol=0)
    parts.weights.close()
    whole.weights.close()


def test_the_name_of_a_part_means_nothing_in_a_file_that_is_none(tmp_path: Path) -> None:
    header, files = open_parts(write_gguf(tmp_path / "lone-00001-of-00002.gguf"))
    files[0].close()
    assert len(files) == 1
    assert set(header.tensors) == set(gguf_tensors())


def test_a_missing_part_is_named(tmp_path: Path) -> None:
    first = split_gguf(tmp_path)
    (tmp_path / "small-00003-of-00003.gguf").unlink()
    refused(first, "^small-00003-of-00003.gguf is missing: all parts")


def test_a_later_part_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    first = split_gguf(tmp_path)
    refused(first.with_name("small-00002-of-00003.gguf"), "part 2 of 3; give small-00001-of-00003.gguf")


@pytest.mark.parametrize("name", ["renamed.gguf", "small-00001-of-00004.gguf"])
def test_a_first_part_of_another_name_cannot_find_the_others(tmp_path: Path, name: str) -> None:
    path = split_gguf(tmp_path).rename(tmp_path / name)
    refused(path, f"^{name}: the first of 3 parts.* must end in -00001-of-00003.gguf")


@pytest.mark.parametrize(
    ("number", "count", "tensors", "total", "message"),
    [
        (0, 2, ["b"], 2, "b-00002-of-00002.gguf: split.no is 0; it must be 1; it is no part of this model"),
        (1, 3, ["b"], 2, "split.count is 3; it must be 2; it is no part of this model"),
        (1, 2, ["a"], 2, "b-00002-of-00002.gguf: tensor 'a' lies in an earlier part too"),
        (1, 2, ["b", "c"], 2, "split.tensors.count is 2; it must be 3, the tensors of all parts"),
        (1, 2, [], 2, "split.tensors.count is 2; it must be 1, the tensors of all parts"),
    ],
)
def test_a_foreign_part_is_refused(
    tmp_path: Path, number: int, count: int, tensors: list[str], total: int, message: str
) -> None:
    first = part(tmp_path, "b-00001-of-00002.gguf", ["a"], number=0, count=2, total=total)
    part(tmp_path, "b-00002-of-00002.gguf", tensors, number=number, count=count)
    refused(first, message)


def test_a_whole_model_in_the_place_of_a_part_is_refused(tmp_path: Path) -> None:
    first = split_gguf(tmp_path)
    write_gguf(tmp_path / "small-00002-of-00003.gguf")
    refused(
        first, "small-00002-of-00003.gguf: split.no is missing; it must be 1; it is no part of this model"
    )


@pytest.mark.parametrize("count", [MAX_PARTS + 1, 65535])
def test_a_count_of_parts_beyond_reason_opens_nothing(tmp_path: Path, count: int) -> None:
    path = part(tmp_path, f"a-00001-of-{count:05d}.gguf", ["a"], number=0, count=count)
    refused(path, f"split.count is {count}; it must be an integer from 0 to {MAX_PARTS}")


def test_every_file_is_closed_when_one_is_refused(tmp_path: Path) -> None:
    first = split_gguf(tmp_path)
    (tmp_path / "small-00003-of-00003.gguf").write_bytes(b"GGUF")
    opened = set(Path("/proc/self/fd").iterdir())
    refused(first, "small-00003-of-00003.gguf: the version")
    assert set(Path("/proc/self/fd").iterdir()) <= opened


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("a.gguf", ("a.gguf",)),
        ("a-00001-of-00002.gguf", ("a-00001-of-00002.gguf", "a-00002-of-00002.gguf")),
        ("a-00002-of-00002.gguf", ("a-00002-of-00002.gguf",)),
        ("a-00001-of-00000.gguf", ("a-00001-of-00000.gguf",)),
        ("a-00001-of-99999.gguf", ("a-00001-of-99999.gguf",)),
        ("a-1-of-2.gguf", ("a-1-of-2.gguf",)),
        ("a-٠٠٠٠١-of-٠٠٠٠٢.gguf", ("a-٠٠٠٠١-of-٠٠٠٠٢.gguf",)),
    ],
)
def test_names_of_parts_follow_from_the_first(name: str, expected: tuple[str, ...]) -> None:
    assert part_names(name) == expected
