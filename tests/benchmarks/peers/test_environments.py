from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers.environments import Environment, peers_home


def install(folder: Path, name: str, version: str) -> None:
    """What pip leaves of a package, as far as its version is concerned."""
    info = folder / "lib" / "python3.11" / "site-packages" / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "python").touch()
    return tmp_path


@pytest.mark.parametrize(
    ("version", "pin", "complete"),
    [
        ("2026.4.1.0", "fast-engine==2026.4.1.*", True),
        ("2026.4.2.0", "fast-engine==2026.4.1.*", False),
        ("0.32.0", "fast-engine==0.32.0", True),
        ("0.32.1", "fast-engine==0.32.0", False),
    ],
)
def test_an_environment_is_complete_with_the_pinned_version(
    folder: Path, version: str, pin: str, complete: bool
) -> None:
    install(folder, "Fast-Engine", version)
    assert Environment(folder, (pin,)).complete is complete


def test_an_environment_is_not_complete_before_unfit_packages_are_out(folder: Path) -> None:
    install(folder, "fast-engine", "1.0")
    install(folder, "torchvision", "0.1")
    assert not Environment(folder, ("fast-engine==1.0",), ("torchvision",)).complete


def test_nothing_is_installed_in_a_folder_that_is_not_there(tmp_path: Path) -> None:
    assert not Environment(tmp_path / "none", ("fast-engine==1.0",)).complete


def test_rivals_are_kept_where_the_variable_says(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TOKENMILL_PEERS", str(tmp_path))
    assert peers_home() == tmp_path
    monkeypatch.delenv("TOKENMILL_PEERS")
    monkeypatch.setenv("TOKENMILL_HOME", str(tmp_path / "home"))
    assert peers_home() == tmp_path / "home" / "peers"
