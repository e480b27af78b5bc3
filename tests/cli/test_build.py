"""The files a clean clone is built from agree with each other and with what is installed."""

from __future__ import annotations

import os
import re
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


# Stands for Python, venv and pip: `pip install` tells of one large download and waits for the file "go".
PYTHON = r"""#!/bin/sh
if [ "$2" = venv ]; then
  mkdir -p .venv/bin
  cp "$0" .venv/bin/python
  printf '#!/bin/sh\necho "pip 1 from %s/.venv/lib/pip"\n' "$PWD" >.venv/bin/pip
  chmod +x .venv/bin/pip
elif [ "$2" = pip ]; then
  echo "  Downloading https://x/big-1.0-py3-none-any.whl (900.0 MB)"
  while [ ! -e go ]; do sleep 0.1; done
  echo "Installing collected packages: big"
fi
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that installs with the Python above."""
    root = tmp_path / "one"
    for file in ("scripts/install.sh", "requirements.lock", "pyproject.toml"):
        (root / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, root / file)
    python = tmp_path / "python"
    python.write_text(PYTHON)
    python.chmod(0o755)
    return root


def start_install(root: Path, *arguments: str, **environment: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["bash", "scripts/install.sh", *arguments],
        cwd=root,
        env={**os.environ, "PYTHON": str(root.parent / "python"), **environment},
        stderr=subprocess.PIPE,
        text=True,
    )


def install(root: Path) -> str:
    process = start_install(root)
    told = process.communicate(timeout=60)[1]
    assert process.returncode == 0, told
    return told


def test_what_is_installed_stays_until_the_checkout_moves(checkout: Path) -> None:
    (checkout / "go").touch()
    assert "==> Creating .venv" in install(checkout)
    assert install(checkout) == ""
    moved = checkout.rename(checkout.with_name("two"))
    assert "==> Creating .venv" in install(moved)
    assert install(moved) == ""


def test_a_long_download_shows_that_it_is_alive(checkout: Path) -> None:
    with start_install(checkout) as process:
        assert process.stderr is not None
        try:
            told = [next(line for line in process.stderr if "900.0 MB), " in line)]
        finally:
            (checkout / "go").touch()
        told += process.stderr
    assert re.fullmatch(r"    big-1\.0 \(900\.0 MB\), \d+ s\n", told[0])
    assert told[1] == "    unpacking\n"
    assert process.returncode == 0


@pytest.mark.parametrize("user", [0, 1000])
def test_the_test_suite_gets_curl_and_node_or_says_how(checkout: Path, tmp_path: Path, user: int) -> None:
    tools = tmp_path / "tools"
    tools.mkdir()
    for tool in [
        "bash",
        "cat",
        "cksum",
        "cp",
        "dirname",
        "grep",
        "mkdir",
        "rm",
        "sed",
        "sh",
        "tail",
        "tee",
        "chmod",
    ]:
        (tools / tool).symlink_to(shutil.which(tool) or tool)
    installed = "for tool in npm tar; do cp /bin/true $TOOLS/$tool; done"
    for tool, script in (("id", f"echo {user}"), ("apt-get", f'echo "$@" >>apt; {installed}')):
        (tools / tool).write_text(f"#!/bin/sh\n{script}\n")
        (tools / tool).chmod(0o755)
    (checkout / "go").touch()
    shutil.copy(ROOT / "requirements-test.lock", checkout)
    sdks = checkout / "tests" / "conformance" / "node"
    sdks.mkdir(parents=True)
    shutil.copy(ROOT / sdks.relative_to(checkout) / "package-lock.json", sdks)
    process = start_install(checkout, "--test", PATH=str(tools), TOOLS=str(tools))
    told = process.communicate(timeout=60)[1]
    if user == 0:
        assert process.returncode == 0, told
        assert (checkout / "apt").read_text().splitlines()[-1].endswith(" curl nodejs npm")
    else:
        assert process.returncode == 1
        assert "apt-get install -y curl nodejs npm" in told


@pytest.mark.parametrize(
    ("script", "page"), [("flags_doc.py", "configuration.md"), ("metrics_doc.py", "metrics.md")]
)
def test_generated_pages_are_current(script: str, page: str) -> None:
    done = subprocess.run([sys.executable, str(ROOT / "scripts" / script), "--check"], check=False)
    assert done.returncode == 0, f"docs/{page} is out of date; type: make docs"
