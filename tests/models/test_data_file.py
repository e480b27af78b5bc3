"""Files that are absent, no files, or change while they are open."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tokenmill.core.errors import ModelFileError
from tokenmill.models.data_file import DataFile


def test_bytes_are_read_from_an_offset(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    file = DataFile(tmp_path / "file")
    buffer = bytearray(4)
    file.read_into(memoryview(buffer), 3)
    assert (bytes(buffer), file.size) == (b"3456", 10)
    file.close()


def test_a_mapping_holds_at_most_the_file_and_ends_with_its_context(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"0123456789")
    file = DataFile(tmp_path / "file")
    with file.mapped(4) as head:
        assert bytes(head) == b"0123"
    with file.mapped(1 << 40) as whole:
        assert len(whole) == 10
    with pytest.raises(ValueError, match="released"):
        len(whole)
    file.close()


def test_an_empty_file_maps_to_nothing(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with DataFile(tmp_path / "file").mapped(10) as head:
        assert len(head) == 0


def test_an_absent_file_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match=r"^gone: cannot be opened \(No such file or directory\)$"):
        DataFile(tmp_path / "gone")


def test_a_pipe_is_refused_and_does_not_wait_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ModelFileError, match="pipe: not a regular file"):
        DataFile(tmp_path / "pipe")


def test_a_folder_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ModelFileError, match="not a regular file"):
        DataFile(tmp_path)


def test_a_file_that_shrank_is_an_error_and_not_a_crash(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10000))
    file = DataFile(path)
    os.truncate(path, 5000)
    with pytest.raises(ModelFileError, match="ends at byte 5000; it was longer when opened"):
        file.read_into(memoryview(bytearray(6000)), 0)
    file.close()


def test_closing_gives_the_descriptor_back_and_reading_then_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")

    def descriptors() -> int:
        return len(list(Path("/proc/self/fd").iterdir()))

    before = descriptors()
    file = DataFile(tmp_path / "file")
    assert descriptors() == before + 1
    file.close()
    file.close()
    assert descriptors() == before
    with pytest.raises(ModelFileError, match="file: closed"):
        file.read_into(memoryview(bytearray(1)), 0)
