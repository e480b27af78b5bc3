"""The files a clean clone is built from agree with each other and with what is installed."""

from __future__ import annotations

import os
import runpy
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[2]


LOCK = runpy.run_path(str(ROOT / "scripts" / "lock.py"))


def locked(*files: str) -> dict[str, Requirement]:
    lines = [line for file in files for line in (ROOT / file).read_text(encoding="utf-8").splitlines()]
    requirements = [Requirement(line) for line in lines if line and not line.startswith("#")]
    return {canonicalize_name(requirement.name): requirement for requirement in requirements}


def project() -> dict[str, list[Requirement]]:
    found = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wanted = {"run": found["project"]["dependencies"], "build": found["build-system"]["requires"]}
    wanted["test"] = found["project"]["optional-dependencies"]["test"]
    return {use: [Requirement(text) for text in texts] for use, texts in wanted.items()}


@pytest.mark.parametrize(
    ("use", "files"),
    [
        ("run", ["requirements.lock"]),
        ("build", ["requirements.lock"]),
        ("test", ["requirements.lock", "requirements-test.lock"]),
    ],
)
def test_the_locks_cover_what_the_project_asks_for(use: str, files: list[str]) -> None:
    pins = locked(*files)
    for wanted in project()[use]:
        pin = pins[canonicalize_name(wanted.name)]
        version = str(pin.specifier).removeprefix("==").replace(".*", ".0")
        assert wanted.specifier.contains(version), f"{pin} does not satisfy {wanted}"


def test_the_locks_cover_what_their_packages_ask_for() -> None:
    pins = locked("requirements.lock", "requirements-test.lock")
    needed = LOCK["closure"](map(str, pins.values()))
    assert needed <= pins.keys(), f"not locked: {needed - pins.keys()}"


def test_what_one_build_of_torch_asks_for_is_left_to_pip(monkeypatch: pytest.MonkeyPatch) -> None:
    asks = {
        "torch": ["sympy", "nvidia-cudnn-cu13==9.2", "cuda-bindings<14,>=13", "triton==3.4.0"],
        "nvidia-cudnn-cu13": ["nvidia-cublas"],
    }
    monkeypatch.setattr(metadata, "requires", asks.get)
    assert LOCK["closure"](["torch==2.13.*"]) == {"torch", "sympy"}


def test_what_is_installed_is_what_is_locked() -> None:
    for name, pin in locked("requirements.lock", "requirements-test.lock").items():
        assert pin.specifier.contains(metadata.version(name)), f"{pin}, not {metadata.version(name)}"


def test_torch_is_locked_to_no_particular_build() -> None:
    assert str(locked("requirements.lock")["torch"].specifier) == "==2.13.*"


def test_an_installation_that_fails_says_so_and_is_tried_again(tmp_path: Path) -> None:
    for file in ("scripts/install.sh", "requirements.lock", "pyproject.toml"):
        (tmp_path / file).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / file, tmp_path / file)
    environment = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path)}
    for _ in range(2):
        done = subprocess.run(
            ["bash", "scripts/install.sh"],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "No matching distribution found" in done.stderr
        assert done.stderr.endswith("error: the installation failed; the whole log is in .venv/install.log\n")


def test_the_configuration_page_is_current() -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / "flags_doc.py"), "--check"], check=False)
    assert done.returncode == 0, "docs/configuration.md is out of date; type: make docs"
