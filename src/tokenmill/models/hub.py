"""Models from a hub that speaks the Hugging Face protocol.

Layout in the home: hub/ORG--NAME/COMMIT/NAME/files, and hub/ORG--NAME/refs/REVISION naming the commit, so
that a model once fetched loads without the network.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote, unquote

from tokenmill.core.bounds import show
from tokenmill.core.errors import DownloadError, UnknownModel
from tokenmill.models.download import Remote, fetch
from tokenmill.models.files import OnProgress, make_folder, need_room, only_one, settle
from tokenmill.models.gguf_parts import part_names
from tokenmill.models.pooling_files import POOLING

API_SECONDS = 30.0
MANIFEST = "tokenmill-files.json"

# Never pickles (*.bin, *.pt, *.pth) and never code: both run when they are read.
_ALLOWED = ("*.safetensors", "*.json", "*.jinja")
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
        whole = HubModel(repo, None, revision)
        path = _present(whole, folder)
        if path is not None and path.is_dir():
            yield f"{repo}{tail}", path, sum(file.stat().st_size for file in path.iterdir() if file.is_file())
        place = _place(whole, folder, _read(ref))
        files = sorted(place.rglob("*.gguf"))
        later = {file.with_name(name) for file in files for name in part_names(file.name)[1:]}
        for file in files:
            parts = [file.with_name(name) for name in part_names(file.name)]
            if file not in later and all(part.is_file() for part in parts):
                size = sum(part.stat().st_size for part in parts)
                yield f"{repo}:{file.relative_to(place).as_posix()}{tail}", file, size


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
    top = [file for file in safe if "/" not in file.name]
    # Some repositories hold the same weights twice, in another project's layout.
    standard = [file for file in top if fnmatch.fnmatchcase(file.name, "model*.safetensors")]
    weights = standard or [file for file in top if file.name.endswith(".safetensors")]
    if weights:
        others = [file for file in top if not file.name.endswith(".safetensors") and _allowed(file.name)]
        pooling = [file for file in safe if file.name == POOLING]
        # Read only where there is no tokenizer.json; most repositories have both.
        pieces = [file for file in top if file.name == "tokenizer.model"]
        if any(file.name == "tokenizer.json" for file in others):
            pieces = []
        return others + pieces + pooling + weights
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


def _allowed(name: str) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in _ALLOWED)


def _names(files: Sequence[HubFile], pattern: str) -> str:
    names = [file.name for file in files if fnmatch.fnmatchcase(file.name, pattern)]
    return ", ".join(names[:20]) + (f" and {len(names) - 20} more" if len(names) > 20 else "") or "none"


def _present(model: HubModel, folder: Path) -> Path | None:
    commit = _read(folder / "refs" / quote(model.revision, safe=""))
    if not commit:
        return None
    place = _place(model, folder, commit)
    if model.file is not None:
        whole = all((place / name).is_file() for name in part_names(model.file))
        return place / model.file if whole else None
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
    _write(folder / "refs" / quote(model.revision, safe=""), commit)
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
    if not info.sha or not re.fullmatch(r"[0-9a-f]{40,64}", info.sha):
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
