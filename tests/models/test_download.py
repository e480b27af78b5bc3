"""Downloads: resumed, checked, placed whole or not at all, whatever the server and the network do."""

from __future__ import annotations

import hashlib
import shutil
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.file_server import FileServer, file_server
from tokenmill.core.errors import DownloadError
from tokenmill.models.download import MAX_FAILURES, AccessRefused, Remote, fetch, tls_context
from tokenmill.models.files import Progress

DATA = hashlib.shake_256(b"data").digest(3_000_000)
SHA256 = hashlib.sha256(DATA).hexdigest()


@pytest.fixture
def server() -> Iterator[FileServer]:
    with file_server() as running:
        running.files["/f"] = DATA
        yield running


class Fetch:
    """Fetches into a folder, with time that does not pass."""

    def __init__(self, server: FileServer, folder: Path) -> None:
        self.server, self.target = server, folder / "models" / "f.bin"
        self.waits: list[float] = []
        self.progress: list[Progress] = []

    def __call__(
        self, path: str = "/f", *, sha256: str | None = SHA256, size: int | None = len(DATA)
    ) -> bytes:
        remote = Remote(
            self.server.url + path, "the file", size, sha256, headers={"Authorization": "Bearer key"}
        )
        fetch(remote, self.target, self.progress.append, sleep=self.waits.append)
        return self.target.read_bytes()

    @property
    def left(self) -> list[str]:
        return sorted(path.name for path in self.target.parent.iterdir())

    def leave(self, part: bytes, version: str) -> None:
        """As an earlier process left it."""
        self.target.parent.mkdir(parents=True)
        self.target.with_name("f.bin.part").write_bytes(part)
        self.target.with_name("f.bin.part.id").write_text(version)


@pytest.fixture
def fetching(server: FileServer, tmp_path: Path) -> Fetch:
    return Fetch(server, tmp_path)


def test_a_file_arrives_whole_with_progress_and_nothing_else_stays(fetching: Fetch) -> None:
    assert fetching() == DATA
    assert fetching.left == ["f.bin"]
    fetched = [step for step in fetching.progress if step.phase == "fetch"]
    assert [step.done_bytes for step in fetched] == sorted(step.done_bytes for step in fetched)
    assert (fetched[0].done_bytes, fetched[-1].done_bytes) == (0, len(DATA))
    assert {step.total_bytes for step in fetching.progress} == {len(DATA)}
    assert fetching.progress[-1].phase == "verify"


@pytest.mark.parametrize("sha256", [SHA256, None])
def test_a_cut_connection_is_continued_where_it_ended(
    fetching: Fetch, server: FileServer, sha256: str | None
) -> None:
    server.cuts = [1_500_000, 200_000]
    assert fetching(sha256=sha256, size=None) == DATA
    assert server.bodies_of("/f") == ["", "bytes=1500000-", "bytes=1700000-"]
    assert len(fetching.waits) == 2


@pytest.mark.parametrize(("sha256", "version"), [(SHA256, SHA256), (None, '"one"')])
def test_what_an_earlier_process_left_is_continued(
    fetching: Fetch, server: FileServer, sha256: str | None, version: str
) -> None:
    fetching.leave(DATA[:1000], version)
    assert fetching(sha256=sha256) == DATA
    assert server.bodies_of("/f") == ["bytes=1000-"]


@pytest.mark.parametrize(
    ("part", "version", "sha256", "size"),
    [
        pytest.param(b"other", '"zero"', None, len(DATA), id="the file has changed meanwhile"),
        pytest.param(b"other", SHA256, SHA256, len(DATA), id="the part is of another file"),
        pytest.param(b"other", "0" * 64, SHA256, len(DATA), id="another digest is wanted now"),
        pytest.param(b"other", "", None, len(DATA), id="nobody knows of which version it is"),
        pytest.param(DATA + b"more", SHA256, SHA256, len(DATA), id="it is too long"),
        pytest.param(DATA + b"more", '"one"', None, None, id="it is too long for the server"),
        pytest.param(b"x" * len(DATA), SHA256, SHA256, len(DATA), id="it is as long but not the same"),
    ],
)
def test_a_part_that_does_not_belong_is_replaced(
    fetching: Fetch, part: bytes, version: str, sha256: str | None, size: int | None
) -> None:
    fetching.leave(part, version)
    assert fetching(sha256=sha256, size=size) == DATA
    assert fetching.left == ["f.bin"]


@pytest.mark.parametrize(("sha256", "version"), [(SHA256, SHA256), (None, '"one"')])
def test_a_complete_part_is_only_checked(fetching: Fetch, sha256: str | None, version: str) -> None:
    fetching.leave(DATA, version)
    assert fetching(sha256=sha256, size=None) == DATA


def test_a_server_that_ignores_ranges_is_read_from_the_start(fetching: Fetch, server: FileServer) -> None:
    server.ranges = False
    server.cuts = [1_500_000]
    assert fetching() == DATA


def test_a_server_that_continues_at_the_wrong_place_is_read_from_the_start(
    fetching: Fetch, server: FileServer
) -> None:
    server.shift = 5
    server.cuts = [1_500_000]
    assert fetching() == DATA
    assert server.bodies_of("/f") == ["", "bytes=1500000-", ""]


def test_without_a_version_nothing_is_continued(fetching: Fetch, server: FileServer) -> None:
    server.etag = ""
    server.cuts = [1_500_000]
    assert fetching(sha256=None) == DATA
    assert server.bodies_of("/f") == ["", ""]


def test_a_weak_version_is_none(fetching: Fetch, server: FileServer) -> None:
    server.etag = 'W/"one"'
    server.cuts = [1_500_000]
    assert fetching(sha256=None) == DATA
    assert server.bodies_of("/f") == ["", ""]


def test_a_length_nobody_tells_is_no_obstacle(fetching: Fetch, server: FileServer) -> None:
    server.lengths = False
    assert fetching(size=None) == DATA


def test_trouble_of_the_server_is_waited_out(fetching: Fetch, server: FileServer) -> None:
    server.statuses = [503, 429, 500]
    assert fetching() == DATA
    assert fetching.waits == [7, 7, 7]  # as its Retry-After says


def test_attempts_that_get_nowhere_end(fetching: Fetch, server: FileServer) -> None:
    server.cuts = [10] * 99
    with pytest.raises(DownloadError, match=r"ended after \d+ of 3000000 bytes"):
        fetching()
    assert len(server.seen) == MAX_FAILURES
    assert fetching.waits == [0.5, 1, 2, 4, 8]
    assert fetching.left == ["f.bin.part", "f.bin.part.id"]  # the next command continues


def test_nobody_listening_ends_in_a_sentence(fetching: Fetch, server: FileServer) -> None:
    server.url = "http://127.0.0.1:9"
    with pytest.raises(DownloadError, match="could not be fetched"):
        fetching()


@pytest.mark.parametrize(
    ("status", "kind"), [(404, DownloadError), (401, AccessRefused), (403, AccessRefused)]
)
def test_a_refusal_is_final(
    fetching: Fetch, server: FileServer, status: int, kind: type[DownloadError]
) -> None:
    server.files["/f"] = status
    with pytest.raises(kind, match=f"the server answers {status}"):
        fetching()
    assert len(server.seen) == 1


def test_other_content_never_gets_the_name(fetching: Fetch, server: FileServer) -> None:
    server.files["/f"] = DATA[:-1] + b"x"
    with pytest.raises(DownloadError, match="SHA-256 differs"):
        fetching()
    assert fetching.left == []


def test_another_length_never_gets_the_name(fetching: Fetch, server: FileServer) -> None:
    server.files["/f"] = DATA + b"x"
    with pytest.raises(DownloadError, match="3000001 bytes, not 3000000"):
        fetching()
    server.lengths = False
    with pytest.raises(DownloadError, match="longer than announced"):
        fetching()
    assert "f.bin" not in fetching.left


def test_a_key_goes_to_its_own_host_alone(fetching: Fetch, server: FileServer) -> None:
    with file_server() as other:
        other.files["/g"] = DATA
        server.files |= {"/f": "/here", "/here": other.url + "/g"}
        assert fetching() == DATA
        assert [seen.headers.get("authorization") for seen in server.seen] == ["Bearer key", "Bearer key"]
        assert [seen.headers.get("authorization") for seen in other.seen] == [None]


@pytest.mark.parametrize("address", ["file:///etc/hostname", "ftp://127.0.0.1/x", "gopher://127.0.0.1/x"])
def test_redirects_leave_http_for_nothing(fetching: Fetch, server: FileServer, address: str) -> None:
    server.files["/f"] = address
    with pytest.raises(DownloadError):
        fetching()
    assert fetching.left == []


@pytest.mark.parametrize("url", ["ftp://127.0.0.1/f", "data:,x", "/etc/hostname"])
def test_only_http_and_files_are_fetched(tmp_path: Path, url: str) -> None:
    with pytest.raises(DownloadError, match="neither http, https nor file"):
        fetch(Remote(url, "it"), tmp_path / "f", lambda _: None)


def test_a_proxy_is_asked_where_one_is_given(server: FileServer, tmp_path: Path) -> None:
    fetch(Remote("http://files.invalid/f", "it", proxy=server.url), tmp_path / "f", lambda _: None)
    assert (tmp_path / "f").read_bytes() == DATA


def test_an_address_with_a_password_is_left_to_pip(tmp_path: Path) -> None:
    with pytest.raises(AccessRefused, match="password"):
        fetch(Remote("http://me:****@127.0.0.1/f", "it"), tmp_path / "f", lambda _: None)


def test_a_file_address_is_read(tmp_path: Path) -> None:
    source = tmp_path / "a b.bin"
    source.write_bytes(DATA)
    fetch(Remote(source.as_uri(), "it", sha256=SHA256), tmp_path / "f", lambda _: None)
    assert (tmp_path / "f").read_bytes() == DATA
    with pytest.raises(DownloadError, match="could not be read"):
        fetch(Remote((tmp_path / "none").as_uri(), "it"), tmp_path / "g", lambda _: None)


def test_a_full_disk_is_told_before_the_body_is_read(
    fetching: Fetch, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = type("Usage", (), {"free": 1000})()
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage)
    with pytest.raises(DownloadError, match="1000 are free"):
        fetching()


def test_a_folder_that_cannot_be_made_is_told(fetching: Fetch) -> None:
    fetching.target.parent.write_text("in the way")
    with pytest.raises(DownloadError, match="set TOKENMILL_HOME"):
        fetching()


def test_certificates_of_the_usual_variables_are_trusted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[str] = []
    monkeypatch.setattr(
        ssl.SSLContext, "load_verify_locations", lambda self, cafile=None: loaded.append(cafile)
    )
    for name in ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("PIP_CERT", "/one.pem")
    tls_context("/two.pem")
    assert loaded == ["/two.pem", "/one.pem"]


def test_a_certificate_file_that_is_missing_is_told(tmp_path: Path) -> None:
    with pytest.raises(DownloadError, match="cannot be read"):
        tls_context(str(tmp_path / "none.pem"))
