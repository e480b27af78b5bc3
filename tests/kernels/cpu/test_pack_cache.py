"""Packed models on disk come back as they were, or not at all."""

from __future__ import annotations

import hashlib
import os
import shutil
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from support.ggml_blocks import random_ggml
from support.model_files import write_folder, write_gguf
from support.packing import ROW_FORMATS, random_packed
from tokenmill.kernels.cpu import pack_cache
from tokenmill.kernels.cpu.pack import pack
from tokenmill.kernels.cpu.pack_cache import PackCache, PackedModel, cache_key
from tokenmill.kernels.cpu.packed import PackedMatrix
from tokenmill.planner.packed import PackedFormat
from tokenmill.planner.packing import Packing

VERDICT = {"divergence": 0.001, "gate": "int8", "passed": True}


def some_model(seed: int = 0) -> PackedModel:
    """Every format once, two of them of one product, one gated."""
    found = [random_packed(form, 40 + 9 * form, 200, seed=seed).matrix for form in ROW_FORMATS]
    gated = PackedMatrix(found[2].shape, found[2].data, gated=True, exact=False)
    return PackedModel({("q", "k"): found[:2], ("gate", "up"): [gated], ("o",): found[3:]}, VERDICT)


@pytest.fixture
def cache(tmp_path: Path) -> PackCache:
    return PackCache(tmp_path / "packed")


def files(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "packed").iterdir())


def test_a_model_comes_back_as_it_was(cache: PackCache) -> None:
    model = some_model()
    assert cache.load("key") is None
    assert cache.store("key", model)
    found = cache.load("key")
    assert found is not None and found.verdict == VERDICT
    assert list(found.matrices) == list(model.matrices)
    for sources, matrices in model.matrices.items():
        for one, other in zip(matrices, found.matrices[sources], strict=True):
            assert (one.shape, one.gated, one.exact) == (other.shape, other.gated, other.exact)
            assert torch.equal(one.data, other.data)
            assert other.data.data_ptr() % 64 == 0 and other.data.is_contiguous()


def test_another_key_is_another_model(cache: PackCache) -> None:
    assert cache.store("one", some_model(1)) and cache.store("two", some_model(2))
    one, two = cache.load("one"), cache.load("two")
    assert one is not None and two is not None
    assert not torch.equal(one.matrices["o",][0].data, two.matrices["o",][0].data)


@pytest.mark.parametrize("at", [0, 17, 30, 60, 200, 5000, 20000, -70])
def test_a_damaged_byte_is_noticed(at: int, cache: PackCache, tmp_path: Path) -> None:
    cache.store("key", some_model())
    (path,) = files(tmp_path)
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)
    assert cache.load("key") is None
    assert files(tmp_path) == []
    assert cache.store("key", some_model()) and cache.load("key") is not None


@pytest.mark.parametrize("size", [0, 20, 100, 4096, 9000, -1])
def test_a_file_that_was_cut_short_is_noticed(size: int, cache: PackCache, tmp_path: Path) -> None:
    cache.store("key", some_model())
    (path,) = files(tmp_path)
    whole = path.read_bytes()
    path.write_bytes(whole[:size])
    assert cache.load("key") is None
    path.write_bytes(whole + b"\0")
    assert cache.load("key") is None


def test_pages_in_each_others_place_are_noticed(cache: PackCache, tmp_path: Path) -> None:
    cache.store("key", some_model())
    (path,) = files(tmp_path)
    raw = path.read_bytes()
    path.write_bytes(raw[:4096] + raw[8192:12288] + raw[4096:8192] + raw[12288:])
    assert cache.load("key") is None


def test_a_header_that_names_no_matrix_is_refused(cache: PackCache, tmp_path: Path) -> None:
    model = some_model()
    matrix = model.matrices["o",][0]
    for changes in ({"rows": 1 << 40}, {"rows": 0}, {"scale_bytes": 3}, {"format": 9}, {"columns": -5}):
        shape = matrix.shape.__class__(**{**vars(matrix.shape), **changes})
        cache.store("key", PackedModel({("o",): [PackedMatrix(shape, matrix.data)]}, {}))
        assert cache.load("key") is None


def test_packing_makes_the_bytes_of_this_version() -> None:
    """If this fails, files of older versions would be read as something else: raise LAYOUT_VERSION with it."""
    made = hashlib.blake2b(digest_size=8)
    for name, form in (
        ("Q4_0", PackedFormat.INT4),
        ("Q4_1", PackedFormat.INT4_OFFSET),
        ("Q8_0", PackedFormat.INT8),
    ):
        stored = random_ggml(name, 50, 96)
        made.update(pack([stored], Packing(form)).data.numpy().tobytes())
        made.update(pack([stored, stored], Packing(form), gated=True).data.numpy().tobytes())
    numbers = torch.from_numpy(np.random.default_rng(0).uniform(-1, 1, (50, 70)).astype(np.float32))
    for form in (PackedFormat.INT8, PackedFormat.BF16, PackedFormat.F32):
        made.update(pack([numbers], Packing(form)).data.numpy().tobytes())
    assert (pack_cache.LAYOUT_VERSION, made.hexdigest()) == (1, "120ad091fd404ab9")


def test_the_least_recently_used_are_dropped(tmp_path: Path) -> None:
    PackCache(tmp_path / "packed").store("first", some_model())
    size = files(tmp_path)[0].stat().st_size
    cache = PackCache(tmp_path / "packed", limit=3 * size)
    for age, key in ((300, "first"), (200, "second"), (100, "third")):
        cache.store(key, some_model())
        then = time.time() - age
        os.utime(tmp_path / "packed" / f"{key}.packed", (then, then))
    assert cache.load("first") is not None  # used now
    cache.store("fourth", some_model())
    assert [path.stem for path in files(tmp_path)] == ["first", "fourth", "third"]


def test_a_model_beyond_the_limit_is_not_kept(tmp_path: Path) -> None:
    cache = PackCache(tmp_path / "packed", limit=10_000)
    assert not cache.store("key", some_model())
    assert files(tmp_path) == []


def test_a_disk_that_is_nearly_full_is_left_alone(
    cache: PackCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pack_cache, "SPARE_BYTES", shutil.disk_usage(tmp_path).free)
    assert not cache.store("key", some_model())
    assert files(tmp_path) == []


def test_what_a_killed_process_left_is_dropped_after_a_while(cache: PackCache, tmp_path: Path) -> None:
    cache.store("key", some_model())
    old, new = (tmp_path / "packed" / f".writing-{name}" for name in ("old", "new"))
    for path in (old, new):
        path.write_bytes(b"half")
    os.utime(old, (0, 0))
    cache.store("key", some_model())
    assert not old.exists() and new.exists()


def test_a_write_that_fails_leaves_nothing(
    cache: PackCache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(pack_cache, "_write", full)
    assert not cache.store("key", some_model())
    assert files(tmp_path) == []


def test_a_home_that_cannot_be_written_is_no_fault(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    cache = PackCache(tmp_path / "file")
    assert not cache.store("key", some_model())
    assert cache.load("key") is None


def test_the_folder_is_in_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path))
    assert PackCache().store("key", some_model())
    assert len(files(tmp_path)) == 1


def test_a_key_is_that_of_the_files_not_of_their_place(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    first = write_gguf(tmp_path / "a" / "small.gguf")
    key = cache_key(first, "auto", "gate 1")
    shutil.move(tmp_path / "a", tmp_path / "b")
    moved = tmp_path / "b" / first.name
    assert cache_key(moved, "auto", "gate 1") == key
    others = {
        cache_key(moved, "int8", "gate 1"),
        cache_key(moved, "auto", "gate 2"),
        cache_key(moved, "auto"),
    }
    assert len(others) == 3 and key not in others
    os.utime(moved, (1, 1))
    assert cache_key(moved, "auto", "gate 1") != key


def test_a_key_of_a_folder(tmp_path: Path) -> None:
    folder = write_folder(tmp_path / "small")
    key = cache_key(folder, "auto")
    with (folder / "model.safetensors").open("ab") as file:
        file.write(b"\0")
    assert cache_key(folder, "auto") != key
