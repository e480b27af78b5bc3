"""Each rival in a folder of its own: from the package index, once."""

from __future__ import annotations

import importlib.metadata
import os
import shutil
import sys
import tarfile
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path

from benchmarks.peers.contender import PeerFailed, run
from tokenmill.core.home import default_home

INSTALL_TIMEOUT_S = 3600.0


def peers_home() -> Path:
    """Where rivals and their model files are kept: $TOKENMILL_PEERS, else `peers` beside the models."""
    chosen = os.environ.get("TOKENMILL_PEERS")
    return Path(chosen).expanduser().absolute() if chosen else default_home() / "peers"


@dataclass(frozen=True)
class Environment:
    """A virtual environment.

    Attributes:
        pins: `name==version`, where the version may end in `.*`. pip installs what a package needs before
            the package, so the environment is whole when these are there and `removed` are not.
        removed: packages to take out again.
    """

    folder: Path
    pins: Sequence[str]
    removed: Sequence[str] = ()

    @property
    def python(self) -> Path:
        return self.folder / "bin" / "python"

    def versions(self) -> dict[str, str]:
        """What is installed in it, by name in lower case."""
        sites = [str(path) for path in self.folder.glob("lib/python*/site-packages")]
        found = importlib.metadata.distributions(path=sites)
        return {one.metadata["Name"].lower(): one.version for one in found}

    @property
    def complete(self) -> bool:
        installed = self.versions()
        pinned = (pin.split("==") for pin in self.pins)
        return (
            self.python.exists()
            and all(fnmatch(installed.get(name, ""), version) for name, version in pinned)
            and not any(name in installed for name in self.removed)
        )

    def make(self) -> None:
        """Raises PeerFailed."""
        if self.complete:
            return
        say(f"installing {' '.join(self.pins)} into {self.folder}")
        if not self.python.exists():
            run([sys.executable, "-m", "venv", str(self.folder)], timeout_s=INSTALL_TIMEOUT_S)
        self._pip("install", *self.pins)
        if self.removed:
            self._pip("uninstall", "--yes", *self.removed)
        if not self.complete:
            raise PeerFailed(f"{self.folder} lacks {' '.join(self.pins)} although pip reported no error")

    def _pip(self, *arguments: str) -> None:
        quiet = ("--quiet", "--no-input", "--disable-pip-version-check")
        run([str(self.python), "-m", "pip", *arguments, *quiet], timeout_s=INSTALL_TIMEOUT_S)


def fetch_source(name: str, version: str, folder: Path) -> None:
    """Unpacks the source package of a release into `folder`. Raises PeerFailed."""
    say(f"fetching the source of {name} {version}")
    fetched, unpacked = folder.with_name("sdist"), folder.with_name("unpacked")
    for old in (fetched, unpacked):
        shutil.rmtree(old, ignore_errors=True)
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-input", "--disable-pip-version-check"]
    source = ("--no-deps", "--no-binary", name, "--dest", str(fetched), f"{name}=={version}")
    run([*pip, *source], timeout_s=INSTALL_TIMEOUT_S)
    with tarfile.open(next(fetched.glob("*.tar.gz"))) as archive:
        archive.extractall(unpacked, filter="data")
    next(unpacked.iterdir()).rename(folder)
    for old in (fetched, unpacked):
        shutil.rmtree(old)


def say(text: str) -> None:
    """One line for the person who waits."""
    print(f"==> {text}", file=sys.stderr, flush=True)
