"""Models from a hub that speaks the Hugging Face protocol.

Layout in the home: hub/ORG--NAME/COMMIT/NAME/files, and hub/ORG--NAME/refs/REVISION, so that a model once
fetched loads without the network. A ref is a JSON object that names the commit of each thing fetched at the
revision: of a GGUF file by its name, of the whole repository by the empty one. Things fetched at different
times may be of different commits; a commit that no ref names is removed.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeGuard
from urllib.parse import quote, unquote

from tokenmill.core.bounds import show
from tokenmill.core.errors import DownloadError, UnknownModel
from tokenmill.models.download import Remote, fetch
from tokenmill.models.files import OnProgress, make_folder, need_room, only_one, settle
from tokenmill.models.folder_layout import files_read
from tokenmill.models.gguf_parts import part_names

API_SECONDS = 30.0
MANIFEST = "tokenmill-files.json"

_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,95}"
_FILE_NAME = re.compile(
    r"[A-Za-z0-9_][A-Za-z0-9_. +=()\[\]-]{0,199}(/[A-Za-z0-9_][A-Za-z0-9_. +=()\[\]-]{0,199}){0,3}"
)
_HUB_ID = re.compile(
    rf"(?P<repo>{_PART}/{_PART})(:(?P<file>[^@:]+\.gguf))?(@(?P<revision>[A-Za-z0-9_][\w./-]{{0,127}}))?"
)


@dataclass(frozen=True)
class HubModel:
    """A repository, one GGUF file of it or its whole model, at a branch, tag or commit."""

    repo: str
    file: str | None = None
    revision: str = "main"


@dataclass(frozen=True)
class HubFile:
    """A file as the hub lists it: large files have a SHA-256, the others a git id."""

    name: str
    size: int | None
    sha256: str | None = None
    git_blob: str | None = None


def parse(text: str) -> HubModel | None:
    """`org/name[:file.gguf][@revision]`; None when it is no such id."""
    match = _HUB_ID.fullmatch(text)
    if match is None or ".." in text or "//" in text or "--" in match["repo"]:
        return None
    if match["file"] is not None and not _FILE_NAME.fullmatch(match["file"]):
        return None
    return HubModel(match["repo"], match["file"], match["revision"] or "main")


def fetch_model(model: HubModel, home: Path, progress: OnProgress) -> Path:
    """The local file or folder of a hub model, fetched when it is not there yet.

    The hub is the one of `HF_ENDPOINT`; a token (`HF_TOKEN` or a login) is sent to that host alone.

    Raises:
        UnknownModel: the hub does not have it.
        DownloadError: the hub does not give it, or cannot be reached.
    """
    folder = home / "hub" / model.repo.replace("/", "--")
    present = _present(model, folder)
    if present is not None:
        return present
    with only_one(folder, model.repo, progress):
        present = _present(model, folder)
        return present if present is not None else _fetch(model, folder, progress)


def installed(home: Path) -> Iterator[tuple[str, Path, int]]:
    """Name, path and bytes of every hub model that lies complete in the home."""
    for ref in sorted((home / "hub").glob("*/refs/*")):
        folder, revision = ref.parent.parent, unquote(ref.name)
        repo = folder.name.replace("--", "/", 1)
        tail = "" if revision == "main" else f"@{revision}"
        found: dict[Path, tuple[str, int]] = {}
        for wanted, commit in sorted(_commits(ref).items()):
            model = HubModel(repo, wanted or None, revision)
            path = _present(model, folder)
            if path is None:
                continue
            if path.is_dir():
                parts, name = [file for file in path.iterdir() if file.is_file()], repo
            else:
                parts = [path.with_name(part) for part in part_names(path.name)]
                name = f"{repo}:{path.relative_to(_place(model, folder, commit)).as_posix()}"
            found[path] = (f"{name}{tail}", sum(file.stat().st_size for file in parts))
        for path, (name, size) in found.items():
            yield name, path, size


def choose(model: HubModel, listed: Sequence[HubFile]) -> list[HubFile]:
    """The files a model needs, out of those a repository has.

    Raises:
        UnknownModel: it has no file of the name that was given.
        DownloadError: none fit, or there are several GGUF files and none was named.
    """
    safe = [file for file in listed if _FILE_NAME.fullmatch(file.name)]
    if model.file is not None:
        parts = part_names(model.file)
        chosen = [file for file in safe if file.name in parts]
        if len(chosen) < len(parts):
            whole = " with all its parts" if len(parts) > 1 else ""
            raise UnknownModel(
                f"{model.repo} has no file {show(model.file)}{whole}; it has {_names(safe, '*.gguf')}"
            )
        return chosen
    by_name = {file.name: file for file in safe}
    wanted = files_read(by_name)
    if wanted:
        return [by_name[name] for name in wanted]
    gguf = [file for file in safe if file.name.endswith(".gguf")]
    if gguf and _is_one_model([file.name for file in gguf]):
        return gguf
    if gguf:
        raise DownloadError(
            f"{model.repo} has several GGUF files; name one, like {model.repo}:{gguf[0].name}. It has "
            f"{_names(safe, '*.gguf')}"
        )
    raise DownloadError(
        f"{model.repo} has neither safetensors nor GGUF files, the only weights this program reads"
    )


def _is_one_model(gguf: Sequence[str]) -> bool:
    return set(gguf) == set(part_names(min(gguf)))


def _names(files: Sequence[HubFile], pattern: str) -> str:
    names = [file.name for file in files if fnmatch.fnmatchcase(file.name, pattern)]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"


def _present(model: HubModel, folder: Path) -> Path | None:
    commits = _commits(_ref(model, folder))
    if model.file is not None:
        # The whole repository may hold it too, when the file is all there is.
        for commit in filter(None, (commits.get(model.file), commits.get(""))):
            place = _place(model, folder, commit)
            if all((place / name).is_file() for name in part_names(model.file)):
                return place / model.file
        return None
    commit = commits.get("", "")
    if not commit:
        return None
    place = _place(model, folder, commit)
    try:
        manifest = json.loads(_read(place / MANIFEST) or "{}")
        whole = bool(manifest) and all(
            (place / name).stat().st_size == size for name, size in manifest.items()
        )
    except (ValueError, OSError):
        return None
    if not whole:
        return None
    first = min(manifest)
    return place / first if first.endswith(".gguf") and _is_one_model(list(manifest)) else place


def _place(model: HubModel, folder: Path, commit: str) -> Path:
    # The last part is what the model will be called by whoever opens the folder.
    return folder / commit / model.repo.partition("/")[2]


def _ref(model: HubModel, folder: Path) -> Path:
    return folder / "refs" / quote(model.revision, safe="")


def _commits(ref: Path) -> dict[str, str]:
    """The commit of each thing fetched at a revision; nothing where the ref cannot be read."""
    try:
        named = json.loads(_read(ref) or "{}")
    except ValueError:
        return {}
    if not isinstance(named, dict):
        return {}
    return {wanted: commit for wanted, commit in named.items() if _is_commit(commit)}


def _is_commit(text: object) -> TypeGuard[str]:
    return isinstance(text, str) and re.fullmatch(r"[0-9a-f]{40,64}", text) is not None


def _remove_unnamed(folder: Path) -> None:
    """Removes the commits that no ref names. Files that are open stay readable."""
    named = {commit for ref in (folder / "refs").iterdir() for commit in _commits(ref).values()}
    for place in folder.iterdir():
        if _is_commit(place.name) and place.name not in named:
            shutil.rmtree(place, ignore_errors=True)


def _read(path: Path) -> str:
    try:
        return path.read_text("utf-8").strip()
    except OSError:
        return ""


def _fetch(model: HubModel, folder: Path, progress: OnProgress) -> Path:
    from huggingface_hub import get_token, hf_hub_url

    endpoint = os.environ.get("HF_ENDPOINT", "").rstrip("/") or None
    token = get_token()
    commit, listed = _list(model, endpoint, token)
    chosen = choose(model, listed)
    for file in chosen:
        if file.name.endswith((".safetensors", ".gguf")) and file.sha256 is None:
            raise DownloadError(
                f"the hub gives no SHA-256 for {file.name} of {model.repo}: it cannot be checked"
            )
    place = _place(model, folder, commit)
    make_folder(place)
    need_room(place, sum(file.size or 0 for file in chosen if not (place / file.name).exists()))
    for file in chosen:
        target = place / file.name
        if target.is_file() and file.size in (None, target.stat().st_size):
            continue
        url = hf_hub_url(model.repo, file.name, revision=commit, endpoint=endpoint)
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        source = f"{model.repo}/{file.name}"
        fetch(Remote(url, source, file.size, file.sha256, file.git_blob, headers), target, progress)
    if model.file is None:
        _write(
            place / MANIFEST, json.dumps({file.name: (place / file.name).stat().st_size for file in chosen})
        )
    ref = _ref(model, folder)
    _write(ref, json.dumps({**_commits(ref), model.file or "": commit}))
    _remove_unnamed(folder)
    present = _present(model, folder)
    if present is None:
        raise DownloadError(f"{model.repo} changed on disk while it was fetched; try again")
    return present


def _list(model: HubModel, endpoint: str | None, token: str | None) -> tuple[str, list[HubFile]]:
    """Commit and files of a repository at the wanted revision."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import GatedRepoError, RepositoryNotFoundError, RevisionNotFoundError

    api = HfApi(endpoint=endpoint, token=token or False)
    try:
        info = api.model_info(model.repo, revision=model.revision, files_metadata=True, timeout=API_SECONDS)
    except GatedRepoError:
        raise DownloadError(f"{model.repo} is gated: accept its terms on the hub and set HF_TOKEN") from None
    except RepositoryNotFoundError:
        raise UnknownModel(f"the hub has no model {model.repo}, or it is private: set HF_TOKEN") from None
    except RevisionNotFoundError:
        raise UnknownModel(f"{model.repo} has no revision {show(model.revision)}") from None
    except Exception as error:  # which client the hub library uses, and so what it raises, differs by version
        raise DownloadError(f"the hub could not be asked for {model.repo}: {str(error)[:300]}") from None
    if not _is_commit(info.sha):
        raise DownloadError(f"the hub names no commit for {model.repo}")
    listed = [
        HubFile(file.rfilename, file.size, sha256=file.lfs.sha256)
        if file.lfs  # its git id is that of the pointer kept in its place
        else HubFile(file.rfilename, file.size, git_blob=file.blob_id)
        for file in info.siblings or ()
    ]
    return info.sha, listed


def _write(path: Path, text: str) -> None:
    make_folder(path.parent)
    new = path.with_name(path.name + ".new")
    new.write_text(text, "utf-8")
    settle(new, path)
