"""Network storage: recognised by the mount table, copied once, used in place otherwise."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from tokenmill.core.errors import DownloadError
from tokenmill.models import storage
from tokenmill.models.files import Progress

MOUNTINFO = r"""
22 1 254:1 / / rw,relatime shared:1 - ext4 /dev/root rw
30 22 0:26 / /mnt/models rw shared:2 master:1 - nfs4 server:/export rw,vers=4.2
31 22 0:27 / /mnt/my\040disk rw - cifs //server/share rw
32 22 0:28 / /mnt/models rw - ext4 /dev/sdb1 rw
33 22 0:29 /sub /mnt/s3 rw,nosuid - fuse.s3fs s3fs rw
broken line
"""


@pytest.mark.parametrize(
    ("kind", "network"),
    [
        ("nfs", True),
        ("nfs4", True),
        ("cifs", True),
        ("smb3", True),
        ("9p", True),
        ("ceph", True),
        ("lustre", True),
        ("glusterfs", True),
        ("beegfs", True),
        ("fuse.sshfs", True),
        ("fuse.s3fs", True),
        ("fuse.fuse-overlayfs", False),
        ("fuseblk", False),
        ("ext4", False),
        ("xfs", False),
        ("overlay", False),
        ("tmpfs", False),
        ("", False),
    ],
)
def test_kinds_of_filesystems(kind: str, network: bool) -> None:
    assert storage.is_network(kind) is network


def test_the_mount_table_is_read(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(MOUNTINFO)
    mounts = storage.read_mounts(table)
    # The later mount on /mnt/models hides the earlier one.
    assert mounts == {"/": "ext4", "/mnt/models": "ext4", "/mnt/my disk": "cifs", "/mnt/s3": "fuse.s3fs"}
    assert storage.filesystem_of(Path("/mnt/s3/a/b"), mounts) == "fuse.s3fs"
    assert storage.filesystem_of(Path("/mnt/s3more"), mounts) == "ext4"
    assert storage.read_mounts(tmp_path / "none") == {}


class Model:
    """A model folder on a drive called `kind`, and a home on another."""

    def __init__(self, root: Path, kind: str, home_kind: str = "ext4") -> None:
        self.folder, self.home = root / "share" / "tiny", root / "home"
        self.folder.mkdir(parents=True)
        self.mounts = {str(root / "share"): kind, str(self.home): home_kind}
        self.progress: list[Progress] = []
        (self.folder / "1_Pooling").mkdir()
        for name in (
            *("model.safetensors", "config.json", "tokenizer.model", "1_Pooling/config.json"),
            *("readme.md", "pytorch_model.bin", "consolidated.safetensors", "1_Pooling/other.json"),
        ):
            (self.folder / name).write_bytes(name.encode() * 1000)

    def local(self, path: Path | None = None) -> Path:
        return storage.local(path or self.folder, self.home, self.progress.append, mounts=lambda: self.mounts)


def test_local_weights_are_used_in_place(tmp_path: Path) -> None:
    model = Model(tmp_path, "xfs")
    assert model.local() == model.folder
    assert not model.home.exists()


def test_a_folder_on_the_network_is_copied_as_far_as_it_is_read(tmp_path: Path) -> None:
    model = Model(tmp_path, "nfs4")
    copy = model.local()
    assert copy.is_relative_to(model.home)
    assert copy.name == "tiny"
    copied = sorted(file.relative_to(copy).as_posix() for file in copy.rglob("*") if file.is_file())
    assert copied == ["1_Pooling/config.json", "config.json", "model.safetensors", "tokenizer.model"]
    for name in copied:
        assert (copy / name).read_bytes() == (model.folder / name).read_bytes()
    assert {step.phase for step in model.progress} == {"copy"}
    assert model.progress[-1].done_bytes == model.progress[-1].total_bytes


def test_a_file_on_the_network_is_copied_under_its_name(tmp_path: Path) -> None:
    model = Model(tmp_path, "cifs")
    copy = model.local(model.folder / "model.safetensors")
    assert copy.name == "model.safetensors"
    assert copy.read_bytes() == (model.folder / "model.safetensors").read_bytes()


def test_a_gguf_file_in_parts_is_copied_whole(tmp_path: Path) -> None:
    model = Model(tmp_path, "nfs")
    parts = [model.folder / f"m-0000{n}-of-00002.gguf" for n in (1, 2)]
    for part in parts:
        part.write_bytes(part.name.encode())
    copy = model.local(parts[0])
    assert [(copy.parent / part.name).read_bytes() for part in parts] == [p.read_bytes() for p in parts]


def test_a_link_to_the_network_is_followed(tmp_path: Path) -> None:
    model = Model(tmp_path, "nfs")
    link = tmp_path / "link.safetensors"
    link.symlink_to(model.folder / "model.safetensors")
    assert model.local(link).is_relative_to(model.home)


def test_a_copy_is_made_once_and_again_after_a_change(tmp_path: Path) -> None:
    model = Model(tmp_path, "nfs4")
    first = model.local()
    model.progress.clear()
    assert model.local() == first
    assert model.progress == []
    weights = model.folder / "model.safetensors"
    weights.write_bytes(b"new" * 1000)
    os.utime(weights, ns=(1, 1))
    second = model.local()
    assert (second / "model.safetensors").read_bytes() == b"new" * 1000
    assert not first.exists()  # the old copy is gone


def test_a_home_on_the_network_is_no_better_place(tmp_path: Path) -> None:
    model = Model(tmp_path, "nfs4", home_kind="nfs4")
    assert model.local() == model.folder


def test_an_interrupted_copy_is_not_taken_for_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(tmp_path, "nfs4")

    def fail(_: int) -> None:
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", fail)
        with pytest.raises(DownloadError, match="Input/output error"):
            model.local()
    assert [path for path in model.home.rglob("*") if path.suffix == ".safetensors"] == []
    assert (model.local() / "model.safetensors").exists()


def test_a_full_disk_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = Model(tmp_path, "nfs4")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: type("Usage", (), {"free": 7})())
    with pytest.raises(DownloadError, match="7 are free"):
        model.local()
