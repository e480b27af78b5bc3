"""Weights on network storage are copied to a local disk before they are mapped into memory."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path

from tokenmill.core.errors import DownloadError
from tokenmill.models.files import CHUNK_BYTES, Meter, OnProgress, make_folder, need_room, only_one
from tokenmill.models.folder_layout import files_read
from tokenmill.models.gguf_parts import part_names
from tokenmill.models.pooling_files import POOLING

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "ceph", "lustre", "glusterfs", "beegfs", "afs", "gpfs"}
    | {"orangefs", "pvfs2", "ocfs2", "gfs2", "davfs"}
)
# User-space filesystems whose data lies on a disk of this machine.
_LOCAL_FUSE = frozenset(
    {"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g", "fuse.squashfuse", "fuse.mergerfs"}
)


def is_network(filesystem: str) -> bool:
    """Whether a filesystem type of the mount table keeps its data on another machine."""
    if filesystem.startswith("fuse."):
        return filesystem not in _LOCAL_FUSE
    return filesystem in _NETWORK


def read_mounts(table: Path = Path("/proc/self/mountinfo")) -> dict[str, str]:
    """Mount point -> filesystem type (proc_pid_mountinfo(5)); empty where there is no such table."""
    try:
        lines = table.read_text("utf-8", "surrogateescape").splitlines()
    except OSError:
        return {}
    mounts = {}
    for line in lines:
        before, _, after = line.partition(" - ")
        fields, kinds = before.split(), after.split()
        if len(fields) >= 5 and kinds:
            mounts[_unescape(fields[4])] = kinds[0]  # of several mounts on one point the last one counts
    return mounts


def filesystem_of(path: Path, mounts: Mapping[str, str]) -> str:
    """The filesystem type an absolute path without links lies on; empty when unknown."""
    for folder in (path, *path.parents):
        if str(folder) in mounts:
            return mounts[str(folder)]
    return ""


def local(
    path: Path, home: Path, progress: OnProgress, *, mounts: Callable[[], Mapping[str, str]] = read_mounts
) -> Path:
    """`path` itself, or a copy in the home when it lies on network storage and the home does not.

    A copy is used again as long as the original's sizes and times stay the same.

    Raises:
        DownloadError: there is no room for the copy, or it cannot be read.
    """
    table = mounts()
    real = path.resolve()
    files = model_files(path)
    network = any(is_network(filesystem_of(file.resolve(), table)) for file in files.values()) or is_network(
        filesystem_of(real, table)
    )
    if not files or not network or is_network(filesystem_of(home.resolve(), table)):
        return path
    where = hashlib.blake2b(os.fsencode(real), digest_size=8).hexdigest()
    place = home / "local" / f"{where}-{state_of(files)}"
    copy = place / path.name
    if copy.exists():
        return copy
    with only_one(home / "local" / where, path.name, progress):
        if not copy.exists():
            _copy(path, files, place, progress)
            for old in place.parent.glob(f"{where}-*"):
                if old != place:
                    shutil.rmtree(old, ignore_errors=True)
    return copy


def _unescape(field: str) -> str:
    for code, char in (("\\040", " "), ("\\011", "\t"), ("\\012", "\n"), ("\\134", "\\")):
        field = field.replace(code, char)
    return field


def model_files(path: Path) -> dict[str, Path]:
    """The files of a model by their names below its folder."""
    if path.is_file():
        parts = {name: path.with_name(name) for name in part_names(path.name)}
        return {name: part for name, part in parts.items() if part.is_file()}
    names = sorted(item.name for item in path.iterdir() if item.is_file())
    if (path / POOLING).is_file():
        names.append(POOLING)
    return {name: path / name for name in files_read(names)}


def state_of(files: Mapping[str, Path]) -> str:
    """Another one whenever a file's name, size or time of change is; wherever the files lie."""
    digest = hashlib.blake2b(digest_size=8)
    for name, file in files.items():
        facts = file.stat()
        digest.update(os.fsencode(f"{name}\0{facts.st_size}\0{facts.st_mtime_ns}\0"))
    return digest.hexdigest()


def _copy(path: Path, files: Mapping[str, Path], place: Path, progress: OnProgress) -> None:
    total = sum(file.stat().st_size for file in files.values())
    unfinished = place.with_name(place.name + ".part")
    shutil.rmtree(unfinished, ignore_errors=True)
    inside = unfinished if path.is_file() else unfinished / path.name
    make_folder(inside)
    need_room(inside, total)
    meter, done = Meter("copy", path.name, total, progress), 0
    try:
        for name, file in files.items():
            copy = inside / name
            copy.parent.mkdir(exist_ok=True)
            with file.open("rb") as source, copy.open("wb") as target:
                while chunk := source.read(CHUNK_BYTES):
                    target.write(chunk)
                    done += len(chunk)
                    meter.at(done)
                target.flush()
                os.fsync(target.fileno())
        unfinished.replace(place)
    except OSError as error:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise DownloadError(
            f"{path.name} could not be copied from network storage: {error.strerror}"
        ) from None
