"""GGUF headers: equal to the gguf package's reader on good files, a clear refusal of every bad one."""

from __future__ import annotations

import os
import random
import struct
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
import pytest

from support.model_files import (
    ARRAY,
    BOOL,
    F32,
    F64,
    I8,
    I16,
    I32,
    I64,
    STRING,
    U8,
    U16,
    U32,
    U64,
    array,
    entry,
    gguf_tensors,
    key,
    raw_gguf,
    string,
    write_gguf,
)
from tokenmill.core.errors import ModelFileError
from tokenmill.models import gguf as gguf_header
from tokenmill.models import gguf_values
from tokenmill.models.data_file import DataFile
from tokenmill.models.gguf import TYPE_NAMES, GgufHeader, read_header

U32_VALUE = struct.pack("<I", 1)
HUGE = 2**63


def read_path(path: Path) -> GgufHeader:
    file = DataFile(path)
    try:
        return read_header(file)
    finally:
        file.close()


def read_bytes(folder: Path, content: bytes) -> GgufHeader:
    path = folder / "model.gguf"
    path.write_bytes(content)
    return read_path(path)


def number(value: int) -> bytes:
    return struct.pack("<Q", value)


def test_the_numbers_of_the_types_are_ggmls() -> None:
    for kind in gguf.GGMLQuantizationType:
        assert TYPE_NAMES.get(kind.value, kind.name) == kind.name


def test_tensors_are_those_the_gguf_package_reads(tmp_path: Path) -> None:
    formats = {"blk.0.ffn_up.weight": "Q4_0", "blk.1.ffn_up.weight": "Q8_0", "output.weight": "BF16"}
    path = write_gguf(tmp_path / "small.gguf", quantize=formats)
    file = DataFile(path)
    header = read_header(file)
    oracle = gguf.GGUFReader(path)
    assert list(header.tensors) == [tensor.name for tensor in oracle.tensors]
    for tensor in oracle.tensors:
        ours = header.tensors[tensor.name]
        assert ours.shape == tuple(reversed(tensor.shape.tolist()))
        assert (ours.format, ours.nbytes) == (tensor.tensor_type.name, tensor.n_bytes)
        assert ours.offset == tensor.data_offset
    file.close()


def test_values_of_every_type_come_back_as_plain_python(tmp_path: Path) -> None:
    values: dict[str, tuple[int, object]] = {
        "u8": (U8, 255),
        "i8": (I8, -128),
        "u16": (U16, 65535),
        "i16": (I16, -32768),
        "u32": (U32, 2**32 - 1),
        "i32": (I32, -(2**31)),
        "f32": (F32, 0.5),
        "bool": (BOOL, True),
        "string": (STRING, "héllo\n\0"),
        "u64": (U64, 2**64 - 1),
        "i64": (I64, -(2**63)),
        "f64": (F64, 1e-300),
        "strings": (ARRAY, ["", "a", "ßü", "x" * 1000]),
        "ints": (ARRAY, [1, -2, 3]),
        "floats": (ARRAY, [0.25, -4.0]),
        "flags": (ARRAY, [True, False]),
    }
    file = DataFile(write_gguf(tmp_path / "typed.gguf", metadata=values))
    metadata = read_header(file).metadata
    file.close()
    assert {name: metadata[name] for name in values} == {name: value for name, (_, value) in values.items()}
    assert {type(value) for value in metadata.values()} <= {int, float, bool, str, list}


def test_nested_arrays_are_read_up_to_a_depth(tmp_path: Path) -> None:
    inner = array(U8, [b"\x01", b"\x02"])
    value = array(ARRAY, [inner, array(STRING, [string("a")])])
    header = read_bytes(tmp_path, raw_gguf([key("nested", ARRAY, value)]))
    assert header.metadata["nested"] == [[1, 2], ["a"]]
    deep = inner
    for _ in range(4):
        deep = array(ARRAY, [deep])
    with pytest.raises(ModelFileError, match="nested deeper than 4"):
        read_bytes(tmp_path, raw_gguf([key("nested", ARRAY, deep)]))


def test_a_version_2_file_is_read(tmp_path: Path) -> None:
    assert read_bytes(tmp_path, raw_gguf([key("a", U32, U32_VALUE)], version=2)).metadata["a"] == 1


def test_an_alignment_of_the_file_moves_the_data(tmp_path: Path) -> None:
    keys = [key("general.alignment", U32, struct.pack("<I", 128))]
    content = raw_gguf(keys, [entry("a", (4,), 0, 0)], bytes(16), alignment=128)
    tensor = read_bytes(tmp_path, content).tensors["a"]
    assert tensor.offset == 128
    assert tensor.offset + tensor.nbytes == len(content)


def test_holes_between_tensors_are_allowed(tmp_path: Path) -> None:
    entries = [entry("b", (4,), 0, 64), entry("a", (4,), 0, 0)]
    assert list(read_bytes(tmp_path, raw_gguf([], entries, bytes(80))).tensors) == ["b", "a"]


A_KEY = key("a", U32, U32_VALUE)
BAD_FILES: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "not a GGUF file"),
    "another magic": (raw_gguf(magic=b"GGML"), "starts with b'GGML'"),
    "version 1": (raw_gguf(version=1), "version 1 is not supported; supported are 2 and 3"),
    "big endian": (raw_gguf(version=3 << 24), "big-endian GGUF is not supported"),
    "key count": (raw_gguf(key_count=HUGE), f"{HUGE} keys; at most"),
    "tensor count": (raw_gguf(tensor_count=HUGE), f"{HUGE} tensors"),
    "more keys than bytes": (raw_gguf([A_KEY], key_count=1000), "13000 bytes of entries cannot fit"),
    "more tensors than bytes": (raw_gguf([A_KEY], tensor_count=1000), "bytes of entries cannot fit"),
    "key length": (
        raw_gguf([number(HUGE) + bytes(32)], key_count=1),
        f"a key takes {HUGE} bytes; at most 65535",
    ),
    "key beyond the end": (raw_gguf([number(60000) + bytes(32)], key_count=1), "the file has"),
    "key not UTF-8": (raw_gguf([string(b"\xff\xfe") + struct.pack("<I", U8) + b"\0"]), "is not UTF-8"),
    "key twice": (raw_gguf([A_KEY, A_KEY]), "key 'a' is listed twice"),
    "value type": (raw_gguf([key("a", 13, bytes(8))]), "the value of 'a' has unknown type 13"),
    "string length": (raw_gguf([key("a", STRING, number(HUGE))]), "the value of 'a' takes"),
    "string not UTF-8": (raw_gguf([key("a", STRING, string(b"\xc3"))]), "the value of 'a': .* is not UTF-8"),
    "array type": (raw_gguf([key("a", ARRAY, array(13, [bytes(8)]))]), "elements of unknown type 13"),
    "array count": (raw_gguf([key("a", ARRAY, array(U8, [], HUGE))]), f"{HUGE} elements of the value of 'a'"),
    "array of strings": (raw_gguf([key("a", ARRAY, array(STRING, [], HUGE))]), "cannot fit"),
    "array of arrays": (raw_gguf([key("a", ARRAY, array(ARRAY, [], HUGE))]), "cannot fit"),
    "string in array": (raw_gguf([key("a", ARRAY, array(STRING, [number(HUGE)]))]), "the file has"),
    "string before another": (
        raw_gguf([key("a", ARRAY, array(STRING, [number(1 << 40), string("x")]))]),
        "the file has",
    ),
    "last string of array": (
        raw_gguf([key("a", ARRAY, array(STRING, [string("x"), number(1000)]))]),
        "the file has",
    ),
    "tensor name length": (
        raw_gguf([], [entry("n" * 65, (1,), 0, 0)], bytes(32)),
        "takes 65 bytes; at most 64",
    ),
    "no dimensions": (raw_gguf([], [entry("a", (), 0, 0)], bytes(32)), "0 dimensions; 1 to 4 are allowed"),
    "five dimensions": (raw_gguf([], [entry("a", (1,) * 5, 0, 0)]), "5 dimensions"),
    "empty dimension": (raw_gguf([], [entry("a", (4, 0), 0, 0)], bytes(32)), "has an empty dimension"),
    "sizes that overflow": (
        raw_gguf([], [entry("a", (1 << 32, 1 << 32), 0, 0)], bytes(32)),
        r"would end at byte 73786976294838206\d+",
    ),
    "format without support": (
        raw_gguf([], [entry("a", (256,), 17, 0)], bytes(256)),
        "tensor 'a' is in format IQ2_XS; supported are F32",
    ),
    "unknown format": (raw_gguf([], [entry("a", (256,), 99, 0)], bytes(256)), "format number 99"),
    "row of half a block": (
        raw_gguf([], [entry("a", (2, 16), 2, 0)], bytes(64)),
        "Q4_0 is stored in blocks of 32, its rows have 16",
    ),
    "tensor twice": (
        raw_gguf([], [entry("a", (4,), 0, 0), entry("a", (4,), 0, 32)], bytes(64)),
        "tensor 'a' is listed twice",
    ),
    "offset not aligned": (
        raw_gguf([], [entry("a", (4,), 0, 16)], bytes(64)),
        "offset 16, which is no multiple",
    ),
    "data beyond the end": (raw_gguf([], [entry("a", (4,), 0, 32)], bytes(47)), "would end at byte"),
    "offset beyond the end": (
        raw_gguf([], [entry("a", (4,), 0, 2**64 - 32)], bytes(64)),
        "would end at byte",
    ),
    "overlap": (
        raw_gguf([], [entry("a", (9,), 0, 0), entry("b", (4,), 0, 32)], bytes(64)),
        "tensors 'a' and 'b' overlap",
    ),
    "same place": (raw_gguf([], [entry("a", (4,), 0, 0), entry("b", (4,), 0, 0)], bytes(64)), "overlap"),
    **{
        f"alignment {value}": (
            raw_gguf([key("general.alignment", U32, struct.pack("<I", value))]),
            f"general.alignment is {value}; it must be a power of two",
        )
        for value in (0, 3, 48, 1 << 31)
    },
    "alignment of text": (
        raw_gguf([key("general.alignment", STRING, string("32"))]),
        "must be a power of two",
    ),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_and_the_message_says_why(name: str, tmp_path: Path) -> None:
    content, message = BAD_FILES[name]
    with pytest.raises(ModelFileError, match=message) as caught:
        read_bytes(tmp_path, content)
    assert str(caught.value).startswith("model.gguf: ")
    assert str(tmp_path) not in str(caught.value)


def test_strings_of_an_array_that_are_not_utf8_are_refused_when_read(tmp_path: Path) -> None:
    value = array(STRING, [string("fine"), string(b"\xff")])
    metadata = read_bytes(tmp_path, raw_gguf([key("words", ARRAY, value)])).metadata
    with pytest.raises(ModelFileError, match=r"words: .* is not UTF-8"):
        metadata["words"]


def test_an_array_is_decoded_once(tmp_path: Path) -> None:
    metadata = read_bytes(tmp_path, raw_gguf([key("words", ARRAY, array(STRING, [string("a")]))])).metadata
    assert metadata["words"] is metadata["words"]


@pytest.fixture
def small_header(tmp_path: Path) -> bytes:
    """A whole small model whose data is cut off after the header, where little is left to damage."""
    words = [f"<{n}>" for n in range(40)]
    path = write_gguf(
        tmp_path / "small.gguf",
        metadata={"tokenizer.ggml.tokens": (ARRAY, words), "tokenizer.ggml.token_type": (ARRAY, [1] * 40)},
    )
    content = path.read_bytes()
    first = gguf.GGUFReader(path).tensors[0].data_offset
    return content[:first]


def test_a_file_cut_anywhere_in_its_header_is_refused(tmp_path: Path, small_header: bytes) -> None:
    path = tmp_path / "cut.gguf"
    path.write_bytes(small_header)
    for length in reversed(range(len(small_header))):
        os.truncate(path, length)
        with pytest.raises(ModelFileError):
            read_path(path)


def test_a_file_cut_in_its_data_is_refused(tmp_path: Path) -> None:
    content = write_gguf(tmp_path / "whole.gguf", {"a": np.ones(100, np.float32)}).read_bytes()
    data = content.rindex(np.ones(100, np.float32).tobytes())
    read_bytes(tmp_path, content[: data + 400])
    with pytest.raises(ModelFileError, match="would end at byte"):
        read_bytes(tmp_path, content[: data + 399])


def damaged(header: bytes, rounds: int) -> Iterator[bytes]:
    """Copies with a few bits flipped, or eight bytes overwritten with an extreme number."""
    chance = random.Random(7)
    extremes = [2**63, 2**64 - 1, 2**32, 2**31, 0, 1]
    for _ in range(rounds):
        broken = bytearray(header)
        if chance.random() < 0.5:
            for _ in range(chance.randint(1, 4)):
                broken[chance.randrange(len(header))] ^= 1 << chance.randrange(8)
        else:
            at = chance.randrange(len(header) - 8)
            broken[at : at + 8] = number(chance.choice(extremes))
        yield bytes(broken)


def test_damaged_headers_are_refused_or_read_in_bounded_memory(tmp_path: Path, small_header: bytes) -> None:
    path = tmp_path / "damaged.gguf"
    path.write_bytes(small_header)
    os.truncate(path, len(small_header) + sum(t.nbytes + 32 for t in gguf_tensors().values()))
    outcomes = {"read": 0, "refused": 0}
    tracemalloc.start()
    with path.open("r+b", buffering=0) as out:
        for header in damaged(small_header, 2000):
            out.seek(0)
            out.write(header)
            try:
                list(read_path(path).metadata.values())  # arrays are decoded on access
                outcomes["read"] += 1
            except ModelFileError:
                outcomes["refused"] += 1
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert min(outcomes.values()) > 100  # the damage reaches both
    assert peak < 4 << 20


@pytest.mark.parametrize(
    "value",
    [key("a", STRING, number(1 << 32)), key("a", ARRAY, array(U8, [], 1 << 32))],
    ids=["text", "array"],
)
def test_a_length_that_fits_a_huge_file_is_still_refused_untouched(tmp_path: Path, value: bytes) -> None:
    path = tmp_path / "huge.gguf"
    path.write_bytes(raw_gguf([value]))
    with path.open("r+b") as sparse:
        sparse.truncate(8 << 30)
    file = DataFile(path)
    tracemalloc.start()
    with pytest.raises(ModelFileError, match=r"at most 134217728|cannot fit in the 1342\d+ bytes left"):
        read_header(file)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    file.close()
    assert peak < 1 << 20


def test_a_header_longer_than_any_real_one_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (gguf_header, gguf_values):
        monkeypatch.setattr(module, "MAX_HEADER_BYTES", 64)
    read_bytes(tmp_path, raw_gguf([key("a", STRING, string("x" * 19))]))
    with pytest.raises(ModelFileError, match="the header is longer than 64 bytes"):
        read_bytes(tmp_path, raw_gguf([key("a", STRING, string("x" * 20))]))
