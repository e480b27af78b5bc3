"""Models from a hub: a server that speaks the protocol, resumed, checked, allow-listed."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.file_server import FileServer, file_server
from tokenmill.core.errors import DownloadError, UnknownModel
from tokenmill.models import hub
from tokenmill.models.hub import HubFile, HubModel
from tokenmill.models.pull import InstalledModel, installed, resolve

COMMIT = "a1" * 20
WEIGHTS = hashlib.shake_256(b"weights").digest(2_500_000)
FILES = {
    "model.safetensors": WEIGHTS,
    "config.json": b"{}",
    "tokenizer.json": b"{}",
    "chat_template.jinja": b"{{ 1 }}",
    "tokenizer.model": b"read where there is no tokenizer.json",
    "README.md": b"read",
    "pytorch_model.bin": b"pickle",
    "modeling_tiny.py": b"code",
    "original/consolidated.safetensors": b"other layout",
}


class Hub:
    """The API of a hub with one repository."""

    def __init__(self, server: FileServer) -> None:
        self.server = server
        self.small = ""  # weights that are listed without a SHA-256
        self.publish(FILES)

    def publish(self, files: dict[str, bytes], *, revision: str = "main", commit: str = COMMIT) -> None:
        siblings = [
            {"rfilename": name, "size": len(content), "blobId": _git_blob(content)}
            | (
                {"lfs": {"size": len(content), "sha256": _sha256(content), "pointerSize": 1}}
                if _large(name) and name != self.small
                else {}
            )
            for name, content in files.items()
        ]
        info = {"id": "org/tiny", "sha": commit, "siblings": siblings, "tags": [], "private": False}
        self.server.json(f"/api/models/org/tiny/revision/{revision}", info)
        for name, content in files.items():
            self.server.files[f"/org/tiny/resolve/{commit}/{name}"] = content

    @property
    def fetched(self) -> list[str]:
        return [seen.path.rpartition("/")[2] for seen in self.server.seen if "/resolve/" in seen.path]


def _large(name: str) -> bool:
    return name.endswith((".safetensors", ".gguf", ".bin"))


def _git_blob(content: bytes) -> str:
    """As `git hash-object` prints it."""
    done = subprocess.run(["git", "hash-object", "--stdin"], input=content, capture_output=True, check=True)
    return done.stdout.decode().strip()


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@pytest.fixture
def tiny(monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    with file_server() as server:
        monkeypatch.setenv("HF_ENDPOINT", server.url + "/")
        monkeypatch.setenv("HF_TOKEN", "hf_secret")
        yield Hub(server)


def get(model: str, home: Path) -> Path:
    return resolve(model, home=home, progress=lambda _: None)


def test_a_model_arrives_with_what_is_read_and_nothing_else(tiny: Hub, tmp_path: Path) -> None:
    folder = get("org/tiny", tmp_path)
    assert folder.name == "tiny"
    expected = ["chat_template.jinja", "config.json", "model.safetensors", "tokenizer.json"]
    assert sorted(path.name for path in folder.iterdir() if path.name != hub.MANIFEST) == expected
    assert (folder / "model.safetensors").read_bytes() == WEIGHTS
    assert installed(tmp_path) == [
        InstalledModel("org/tiny", folder, sum(path.stat().st_size for path in folder.iterdir()))
    ]


def test_a_sentencepiece_tokenizer_comes_where_there_is_no_other(tiny: Hub, tmp_path: Path) -> None:
    tiny.publish({name: content for name, content in FILES.items() if name != "tokenizer.json"})
    assert (get("org/tiny", tmp_path) / "tokenizer.model").read_bytes() == FILES["tokenizer.model"]


def test_a_model_for_embeddings_arrives_with_how_it_pools(tiny: Hub, tmp_path: Path) -> None:
    said = {"modules.json": b"[]", "1_Pooling/config.json": b'{"pooling_mode": "mean"}'}
    tiny.publish({**FILES, **said, "2_Dense/config.json": b"{}", "2_Dense/model.safetensors": b"-"})
    folder = get("org/tiny", tmp_path)
    assert {name: (folder / name).read_bytes() for name in said} == said
    assert not (folder / "2_Dense").exists()
    tiny.server.seen.clear()
    assert get("org/tiny", tmp_path) == folder
    assert tiny.server.seen == []


def test_once_fetched_no_network_is_needed(tiny: Hub, tmp_path: Path) -> None:
    folder = get("org/tiny", tmp_path)
    tiny.server.seen.clear()
    assert get("org/tiny", tmp_path) == folder
    assert tiny.server.seen == []


def test_the_token_is_sent_to_the_endpoint_alone(tiny: Hub, tmp_path: Path) -> None:
    with file_server() as cdn:
        cdn.files["/weights"] = WEIGHTS
        tiny.server.files[f"/org/tiny/resolve/{COMMIT}/model.safetensors"] = cdn.url + "/weights"
        get("org/tiny", tmp_path)
        assert {seen.headers.get("authorization") for seen in tiny.server.seen} == {"Bearer hf_secret"}
        assert {seen.headers.get("authorization") for seen in cdn.seen} == {None}


def test_an_interrupted_model_is_continued_by_the_next_process(tiny: Hub, tmp_path: Path) -> None:
    path = f"/org/tiny/resolve/{COMMIT}/model.safetensors"
    tiny.server.files[path] = 404
    with pytest.raises(DownloadError, match="404"):
        get("org/tiny", tmp_path)
    assert installed(tmp_path) == []
    place = tmp_path / "hub" / "org--tiny" / COMMIT / "tiny"
    (place / "model.safetensors.part").write_bytes(WEIGHTS[:1_000_000])
    (place / "model.safetensors.part.id").write_text(_sha256(WEIGHTS))
    tiny.server.files[path] = WEIGHTS
    tiny.server.seen.clear()
    program = (
        "import sys; from pathlib import Path; from tokenmill.models.pull import resolve;"
        "sys.stdout.write(str(resolve('org/tiny', home=Path(sys.argv[1]), progress=lambda _: None)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program, str(tmp_path)],
        env=os.environ | {"HF_ENDPOINT": tiny.server.url},
        capture_output=True,
        text=True,
        check=True,
    )
    assert Path(done.stdout) == place
    assert (place / "model.safetensors").read_bytes() == WEIGHTS
    assert tiny.server.bodies_of(path) == ["bytes=1000000-"]
    assert tiny.fetched == ["model.safetensors"]  # the small files were there already


def test_weights_that_differ_from_the_listing_are_refused(tiny: Hub, tmp_path: Path) -> None:
    tiny.server.files[f"/org/tiny/resolve/{COMMIT}/model.safetensors"] = WEIGHTS[:-1] + b"x"
    with pytest.raises(DownloadError, match="SHA-256 differs"):
        get("org/tiny", tmp_path)
    assert installed(tmp_path) == []


def test_a_small_file_that_differs_from_the_listing_is_refused(tiny: Hub, tmp_path: Path) -> None:
    tiny.server.files[f"/org/tiny/resolve/{COMMIT}/tokenizer.json"] = b"[]"
    with pytest.raises(DownloadError, match=r"org/tiny/tokenizer\.json is not what was promised: its git id"):
        get("org/tiny", tmp_path)
    assert installed(tmp_path) == []


@pytest.mark.parametrize("name", ["model.safetensors", "tiny.gguf"])
def test_weights_that_cannot_be_checked_are_not_fetched(tiny: Hub, tmp_path: Path, name: str) -> None:
    tiny.small = name
    tiny.publish({name: b"weights", "config.json": b"{}"})
    with pytest.raises(DownloadError, match=f"no SHA-256 for {name}"):
        get("org/tiny", tmp_path)
    assert tiny.fetched == []


def test_one_gguf_file_of_several_is_fetched_by_name(tiny: Hub, tmp_path: Path) -> None:
    tiny.publish({"tiny.Q4_0.gguf": b"four", "tiny.Q8_0.gguf": b"eight", "config.json": b"{}"})
    file = get("org/tiny:tiny.Q8_0.gguf", tmp_path)
    assert (file.name, file.read_bytes()) == ("tiny.Q8_0.gguf", b"eight")
    assert tiny.fetched == ["tiny.Q8_0.gguf"]
    assert [model.name for model in installed(tmp_path)] == ["org/tiny:tiny.Q8_0.gguf"]
    with pytest.raises(DownloadError, match=r"several GGUF files; name one, like org/tiny:tiny\.Q4_0\.gguf"):
        get("org/tiny", tmp_path)
    with pytest.raises(DownloadError, match=r"it has tiny\.Q4_0\.gguf, tiny\.Q8_0\.gguf"):
        get("org/tiny:none.gguf", tmp_path)


def test_a_lone_gguf_file_needs_no_name(tiny: Hub, tmp_path: Path) -> None:
    tiny.publish({"tiny.Q4_0.gguf": b"four", "README.md": b"read"})
    file = get("org/tiny", tmp_path)
    assert file.read_bytes() == b"four"
    assert get("org/tiny", tmp_path) == file


PARTS = {f"Q8/tiny-0000{n}-of-00002.gguf": b"part%d" % n for n in (1, 2)}


@pytest.mark.parametrize("name", ["org/tiny", "org/tiny:Q8/tiny-00001-of-00002.gguf"])
def test_a_gguf_model_in_parts_arrives_whole_by_its_first(tiny: Hub, tmp_path: Path, name: str) -> None:
    tiny.publish({**PARTS, "README.md": b"read"})
    file = get(name, tmp_path)
    assert file.name == "tiny-00001-of-00002.gguf"
    assert [(file.parent / Path(part).name).read_bytes() for part in PARTS] == list(PARTS.values())
    assert [(m.name, m.bytes) for m in installed(tmp_path)] == [("org/tiny:" + min(PARTS), 10)]
    (file.parent / "tiny-00002-of-00002.gguf").unlink()
    assert get(name, tmp_path) == file  # and what is missing is fetched again
    assert sorted(tiny.fetched) == [f"tiny-0000{n}-of-00002.gguf" for n in (1, 2, 2)]


def test_a_part_the_hub_lacks_is_told(tiny: Hub, tmp_path: Path) -> None:
    tiny.publish({min(PARTS): b"one"})
    with pytest.raises(UnknownModel, match=r"has no file 'Q8/tiny-00001-of-00002\.gguf' with all its"):
        get("org/tiny:" + min(PARTS), tmp_path)


def test_a_revision_has_a_place_of_its_own(tiny: Hub, tmp_path: Path) -> None:
    other = "b2" * 20
    tiny.publish({"model.safetensors": b"old", "config.json": b"{}"}, revision="v1", commit=other)
    folder = get("org/tiny@v1", tmp_path)
    assert (folder / "model.safetensors").read_bytes() == b"old"
    assert (get("org/tiny", tmp_path) / "model.safetensors").read_bytes() == WEIGHTS
    assert [model.name for model in installed(tmp_path)] == ["org/tiny", "org/tiny@v1"]


def test_files_fetched_before_the_repository_moved_stay(tiny: Hub, tmp_path: Path) -> None:
    moved = "c3" * 20
    files = {"tiny.Q4_0.gguf": b"four", "tiny.Q8_0.gguf": b"eight"}
    tiny.publish(files)
    four = get("org/tiny:tiny.Q4_0.gguf", tmp_path)
    tiny.publish({name: b"new " + content for name, content in files.items()}, commit=moved)
    eight = get("org/tiny:tiny.Q8_0.gguf", tmp_path)
    assert (four.read_bytes(), eight.read_bytes()) == (b"four", b"new eight")
    tiny.server.seen.clear()
    assert get("org/tiny:tiny.Q4_0.gguf", tmp_path) == four
    assert get("org/tiny:tiny.Q8_0.gguf", tmp_path) == eight
    assert tiny.server.seen == []
    assert [(model.name, model.path) for model in installed(tmp_path)] == [
        ("org/tiny:tiny.Q4_0.gguf", four),
        ("org/tiny:tiny.Q8_0.gguf", eight),
    ]


def test_a_commit_nothing_names_any_more_is_removed(tiny: Hub, tmp_path: Path) -> None:
    moved = "c3" * 20
    folder = get("org/tiny", tmp_path)
    (folder / "config.json").unlink()
    tiny.publish(FILES, commit=moved)
    assert get("org/tiny", tmp_path).parent.name == moved
    assert not folder.parent.exists()
    assert [model.name for model in installed(tmp_path)] == ["org/tiny"]


def test_a_commit_another_revision_names_is_kept(tiny: Hub, tmp_path: Path) -> None:
    tiny.publish(FILES, revision="v1")
    kept = get("org/tiny@v1", tmp_path)
    get("org/tiny", tmp_path)
    (kept / "config.json").unlink()
    tiny.publish(FILES, commit="c3" * 20)
    get("org/tiny", tmp_path)
    assert (kept / "model.safetensors").read_bytes() == WEIGHTS


def test_a_lone_file_that_came_with_its_repository_is_there_by_name_too(tiny: Hub, tmp_path: Path) -> None:
    tiny.publish({"tiny.Q4_0.gguf": b"four"})
    file = get("org/tiny", tmp_path)
    tiny.server.seen.clear()
    assert get("org/tiny:tiny.Q4_0.gguf", tmp_path) == file
    assert tiny.server.seen == []


def test_a_ref_that_cannot_be_read_is_none(tiny: Hub, tmp_path: Path) -> None:
    folder = get("org/tiny", tmp_path)
    ref = tmp_path / "hub" / "org--tiny" / "refs" / "main"
    for text in ("", "{", "[]", "7", '{"": 7}', '{"": "../../x"}'):
        ref.write_text(text)
        assert installed(tmp_path) == []
        assert get("org/tiny", tmp_path) == folder
    assert tiny.fetched.count("model.safetensors") == 1


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({"pytorch_model.bin": b"pickle", "config.json": b"{}"}, "neither safetensors nor GGUF"),
        ({"../../evil.safetensors": b"x"}, "neither safetensors nor GGUF"),
        ({"/etc/evil.gguf": b"x"}, "neither safetensors nor GGUF"),
        ({"a/../../evil.gguf": b"x"}, "neither safetensors nor GGUF"),
        ({}, "neither safetensors nor GGUF"),
    ],
)
def test_repositories_without_safe_weights_are_refused(
    tiny: Hub, tmp_path: Path, files: dict[str, bytes], message: str
) -> None:
    tiny.publish(files)
    with pytest.raises(DownloadError, match=message):
        get("org/tiny", tmp_path)
    assert tiny.fetched == []


def test_a_second_copy_of_the_weights_in_another_layout_is_left() -> None:
    names = [
        "model-00001-of-00002.safetensors",
        "model-00002-of-00002.safetensors",
        "consolidated.safetensors",
    ]
    chosen = hub.choose(HubModel("org/tiny"), [HubFile(name, 1) for name in names])
    assert [file.name for file in chosen] == names[:2]


@pytest.mark.parametrize(
    ("model", "message"),
    [("org/other", "no model org/other, or it is private"), ("org/tiny@none", "org/tiny")],
)
def test_what_the_hub_does_not_have_is_told(tiny: Hub, tmp_path: Path, model: str, message: str) -> None:
    with pytest.raises(UnknownModel, match=message):
        get(model, tmp_path)


def test_a_hub_that_cannot_be_reached_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(DownloadError, match="could not be asked for org/tiny"):
        get("org/tiny", tmp_path)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("org/name", HubModel("org/name")),
        ("org/name@v1", HubModel("org/name", None, "v1")),
        ("org/name@refs/pr/7", HubModel("org/name", None, "refs/pr/7")),
        ("org/name:a.Q4_0.gguf", HubModel("org/name", "a.Q4_0.gguf")),
        ("org/name:sub/a.gguf@v1", HubModel("org/name", "sub/a.gguf", "v1")),
        ("name", None),
        ("org/name/more", None),
        ("../name", None),
        ("org/..", None),
        ("org/name:../a.gguf", None),
        ("org/name:/a.gguf", None),
        ("org/name:a.bin", None),
        ("org/name@../x", None),
        ("org/name@", None),
        ("org/name:", None),
        ("o--rg/name", None),
        ("org/" + "n" * 200, None),
        ("org/na me", None),
    ],
)
def test_ids(text: str, expected: HubModel | None) -> None:
    assert hub.parse(text) == expected
