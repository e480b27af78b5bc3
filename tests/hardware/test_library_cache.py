"""The folder of compiled libraries stays whole and bounded."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from filelock import FileLock

from tokenmill.hardware import library_cache
from tokenmill.hardware.library_cache import ABANDONED_SECONDS, KEPT_LIBRARIES, cached_library, is_whole


def build(target: Path) -> None:
    target.write_bytes(b"code")


def never(target: Path) -> None:
    raise AssertionError(f"{target} is there already")


def test_what_is_there_is_not_built_again(tmp_path: Path) -> None:
    path = cached_library(tmp_path / "native" / "a.so", build)
    assert is_whole(path)
    assert cached_library(path, never) == path


def test_files_in_the_making_are_left_nowhere(tmp_path: Path) -> None:
    def build_with_objects(target: Path) -> None:
        target.with_name("0.o").write_bytes(b"object")
        build(target)

    cached_library(tmp_path / "a.so", build_with_objects)
    assert {path.name for path in tmp_path.iterdir()} <= {"a.so", "a.lock"}


def test_the_least_recently_used_are_dropped(tmp_path: Path) -> None:
    for age in range(KEPT_LIBRARIES):
        path = cached_library(tmp_path / f"{age}.so", build)
        os.utime(path, (1000 - age, 1000 - age))
    cached_library(tmp_path / f"{KEPT_LIBRARIES - 1}.so", never)  # the oldest, used again
    cached_library(tmp_path / "new.so", build)
    gone = {f"{age}.so" for age in range(KEPT_LIBRARIES)} - {path.name for path in tmp_path.glob("*.so")}
    assert gone == {f"{KEPT_LIBRARIES - 2}.so"}
    assert not (tmp_path / f"{KEPT_LIBRARIES - 2}.lock").exists()


def test_what_a_killed_process_left_is_removed_once_it_is_old(tmp_path: Path) -> None:
    old, young = tmp_path / ".building-old", tmp_path / ".building-young"
    for folder in (old, young):
        folder.mkdir()
        (folder / "0.o").write_bytes(b"")
    past = young.stat().st_mtime - ABANDONED_SECONDS - 60
    os.utime(old, (past, past))
    cached_library(tmp_path / "a.so", build)
    assert not old.exists()
    assert young.exists()


def test_another_users_library_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cached_library(tmp_path / "a.so", build)
    if path.stat().st_uid == 0:
        os.chown(path, 12345, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: path.stat().st_uid + 1)
    assert not is_whole(path)


def test_a_builder_that_fails_leaves_nothing(tmp_path: Path) -> None:
    def fail(target: Path) -> None:
        build(target)
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        cached_library(tmp_path / "a.so", fail)
    assert not list(tmp_path.glob("*.so"))
    assert cached_library(tmp_path / "a.so", build).exists()  # the lock is free


def test_a_process_that_waits_too_long_builds_by_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library_cache, "LOCK_SECONDS", 0.01)
    with FileLock(tmp_path / "a.lock", is_singleton=False):
        assert is_whole(cached_library(tmp_path / "a.so", build))
