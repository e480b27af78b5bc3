"""Fetches one file over HTTP, resuming what an earlier attempt, or an earlier process, has left."""

from __future__ import annotations

import http.client
import os
import re
import ssl
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from email.message import Message
from pathlib import Path
from typing import IO, Any
from urllib.parse import urlsplit

from tokenmill.core.errors import DownloadError
from tokenmill.core.version import VERSION
from tokenmill.models.files import (
    CHUNK_BYTES,
    Meter,
    OnProgress,
    git_blob_of,
    make_folder,
    need_room,
    settle,
    sha256_of,
)

MAX_FAILURES = 6
MAX_WAIT_SECONDS = 30.0
TIMEOUT_SECONDS = 30.0
_TRANSIENT = frozenset({408, 425, 429, 500, 502, 503, 504})
_CA_VARIABLES = ("SSL_CERT_FILE", "REQUESTS_CA_BUNDLE", "PIP_CERT", "CURL_CA_BUNDLE")


class AccessRefused(DownloadError):
    """The server wants credentials or a certificate this client does not have."""


@dataclass(frozen=True)
class Remote:
    """A file on a server.

    Attributes:
        url: http, https or file.
        source: its name for people.
        size, sha256, git_blob: what it must be, as far as known.
        headers: sent to the host of `url` alone, not to hosts it redirects to.
        ca_file: certificates trusted beside the usual ones.
        proxy: used instead of those the environment names.
    """

    url: str
    source: str
    size: int | None = None
    sha256: str | None = None
    git_blob: str | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    ca_file: str | None = None
    proxy: str | None = None


def fetch(
    remote: Remote, target: Path, report: OnProgress, *, sleep: Callable[[float], None] = time.sleep
) -> None:
    """Fetches `remote` to `target`, which appears only when complete and checked.

    Data collects in `target` + ".part"; beside it ".part.id" says which version of the file it belongs to.
    The caller holds the lock of `target`.

    Raises:
        AccessRefused: 401, 403, 407, or a certificate that cannot be verified.
        DownloadError: anything else that does not get better by trying again, or did not in time.
    """
    address = urlsplit(remote.url)
    if address.scheme not in ("http", "https", "file"):
        raise DownloadError(f"{remote.source} has an address that is neither http, https nor file")
    if "@" in address.netloc:
        raise AccessRefused(f"{remote.source} needs a user name and password")
    make_folder(target.parent)
    transfer = _Transfer(remote, target, report)
    resumed = transfer.part_size() > 0
    _persist(transfer, sleep)
    problem = transfer.problem()
    if problem and resumed:
        # What lay there may have been of another file: once more from the start.
        transfer.discard()
        _persist(transfer, sleep)
        problem = transfer.problem()
    if problem:
        transfer.discard()
        raise DownloadError(f"{remote.source} is not what was promised: {problem}")
    settle(transfer.part, target)
    transfer.discard()


def _persist(transfer: _Transfer, sleep: Callable[[float], None]) -> None:
    """Attempts until the whole file is there; attempts that got nowhere are counted."""
    failures = 0
    while True:
        before = transfer.part_size()
        try:
            transfer.attempt()
            return
        except _Transient as error:
            failures = 1 if transfer.part_size() - before >= CHUNK_BYTES else failures + 1
            if failures >= MAX_FAILURES:
                raise DownloadError(f"{transfer.remote.source} could not be fetched: {error}") from None
            wait = error.wait if error.wait is not None else 0.5 * 2 ** (failures - 1)
            sleep(min(wait, MAX_WAIT_SECONDS))


class _Transient(Exception):
    """Worth another attempt, after `wait` seconds when the server says so."""

    def __init__(self, message: str, wait: float | None = None) -> None:
        super().__init__(message)
        self.wait = wait


class _Transfer:
    """The state of one file on its way."""

    def __init__(self, remote: Remote, target: Path, report: OnProgress) -> None:
        self.remote = remote
        self.part = target.with_name(target.name + ".part")
        self._id = target.with_name(target.name + ".part.id")
        self._report = report
        self._meter = Meter("fetch", remote.source, remote.size, report)
        self._opener = _opener(remote)
        self._total = remote.size

    def part_size(self) -> int:
        return self.part.stat().st_size if self.part.exists() else 0

    def discard(self) -> None:
        for path in (self.part, self._id):
            path.unlink(missing_ok=True)

    def problem(self) -> str | None:
        """What is wrong with the fetched file, if anything."""
        size = self.part_size()
        if self._total is not None and size != self._total:
            return f"it has {size} bytes, not {self._total}"
        checks = (("SHA-256", self.remote.sha256, sha256_of), ("git id", self.remote.git_blob, git_blob_of))
        for name, promised, compute in checks:
            if promised and compute(self.part, self.remote.source, self._report) != promised:
                return f"its {name} differs"
        return None

    def attempt(self) -> None:
        """One request; returns when the file is as long as the server says it is."""
        offset = self._resumable()
        if offset and offset == self.remote.size:
            return
        request = urllib.request.Request(  # noqa: S310 (the scheme was checked)
            self.remote.url,
            headers={"User-Agent": f"tokenmill/{VERSION}", "Accept-Encoding": "identity"},
        )
        for name, value in self.remote.headers.items():
            request.add_unredirected_header(name, value)
        if offset:
            request.add_header("Range", f"bytes={offset}-")
            if not self.remote.sha256:  # with a pinned digest a wrong continuation is found at the end
                request.add_header("If-Range", self._id.read_text("utf-8"))
        try:
            response = self._opener.open(request, timeout=TIMEOUT_SECONDS)
        except urllib.error.HTTPError as error:
            self._refused(error, offset)
            return
        except (urllib.error.URLError, http.client.HTTPException, OSError) as error:
            raise _network_error(self.remote, error) from None
        with response:
            self._receive(response, offset)

    def _resumable(self) -> int:
        """Bytes of the part that can be continued; a part of unknown origin is not."""
        known = self._id.read_text("utf-8") if self._id.exists() else ""
        if not known or (self.remote.sha256 and known != self.remote.sha256):
            self.discard()
        size = self.part_size()
        if self.remote.size is not None and size > self.remote.size:
            self.discard()
            return 0
        return size

    def _refused(self, error: urllib.error.HTTPError, offset: int) -> None:
        status = error.code
        error.close()
        if status == 416 and offset:
            whole = re.fullmatch(r"bytes \*/(\d+)", error.headers.get("Content-Range", ""))
            if whole and int(whole[1]) == offset:
                self._total = offset
                return
            self.discard()
            raise _Transient("the server has another version by now")
        if status in _TRANSIENT:
            wait = error.headers.get("Retry-After", "")
            raise _Transient(f"the server answers {status}", float(wait) if wait.isdecimal() else None)
        message = f"{self.remote.source} could not be fetched: the server answers {status}"
        raise AccessRefused(message) if status in (401, 403, 407) else DownloadError(message)

    def _receive(self, response: Any, offset: int) -> None:
        headers: Message = response.headers
        length = headers.get("Content-Length", "")
        total = int(length) if length.isdecimal() else None
        if (response.status or 200) == 206:
            span = re.fullmatch(r"bytes (\d+)-\d+/(\d+)", headers.get("Content-Range", ""))
            if not span or int(span[1]) != offset:
                self.discard()
                raise _Transient("the server continues at the wrong place")
            total = int(span[2])
        else:
            offset = 0  # the server sends everything: start over
        if self.remote.size is not None and total is not None and total != self.remote.size:
            raise DownloadError(
                f"{self.remote.source} is not what was promised: it has {total} bytes, not {self.remote.size}"
            )
        self._total = self._meter.total_bytes = total if total is not None else self.remote.size
        if self._total is not None:
            need_room(self.part.parent, self._total - offset)
        with self.part.open("ab" if offset else "wb") as file:
            self._remember(headers)  # after an old part was cut to nothing, never before
            self._copy(response, file, offset)

    def _remember(self, headers: Message) -> None:
        """Notes which version the part belongs to; without a note it is never continued."""
        tag = str(headers.get("ETag", ""))
        strong = "" if tag.startswith("W/") else tag
        version = self.remote.sha256 or strong or str(headers.get("Last-Modified", ""))
        self._id.write_text(version, "utf-8")

    def _copy(self, response: Any, file: IO[bytes], done: int) -> None:
        self._meter.at(done)
        while True:
            try:
                chunk = response.read(CHUNK_BYTES)
            except (http.client.HTTPException, OSError) as error:
                raise _network_error(self.remote, error) from None
            if not chunk:
                break
            done += len(chunk)
            if self._total is not None and done > self._total:
                raise DownloadError(
                    f"{self.remote.source} is not what was promised: it is longer than announced"
                )
            try:
                file.write(chunk)
            except OSError as error:
                raise DownloadError(f"{self.remote.source} could not be written: {error.strerror}") from None
            self._meter.at(done)
        if self._total is not None and done < self._total:
            raise _Transient(f"the connection ended after {done} of {self._total} bytes")


def _network_error(remote: Remote, error: Exception) -> Exception:
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, ssl.SSLCertVerificationError):
        return AccessRefused(
            f"{remote.source} could not be fetched: the server's certificate is not trusted; set "
            "SSL_CERT_FILE to your organisation's certificates"
        )
    if remote.url.startswith("file:"):
        return DownloadError(f"{remote.source} could not be read from the index's folder")
    return _Transient(str(reason) or type(reason).__name__)


class _Redirects(urllib.request.HTTPRedirectHandler):
    """Follows redirects to http and https alone, and never from https back to http."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: Any, newurl: str
    ) -> urllib.request.Request | None:
        scheme = urlsplit(newurl).scheme
        if scheme not in ("http", "https") or (req.type == "https" and scheme == "http"):
            raise DownloadError("the server redirects to an address that is not safe to follow")
        request = super().redirect_request(req, fp, code, msg, headers, newurl)
        if request is not None and urlsplit(newurl).netloc == urlsplit(req.full_url).netloc:
            for name, value in req.unredirected_hdrs.items():
                request.add_unredirected_header(name, value)
        return request


def _opener(remote: Remote) -> urllib.request.OpenerDirector:
    handlers: list[urllib.request.BaseHandler] = [_Redirects()]
    if remote.proxy:
        handlers.append(urllib.request.ProxyHandler({"http": remote.proxy, "https": remote.proxy}))
    if not remote.url.startswith("file:"):
        handlers.append(urllib.request.HTTPSHandler(context=tls_context(remote.ca_file)))
    return urllib.request.build_opener(*handlers)


def tls_context(ca_file: str | None = None) -> ssl.SSLContext:
    """Trusts the system's certificates, those of the usual variables, and `ca_file`."""
    context = ssl.create_default_context()
    given = [path for path in (ca_file, *map(os.environ.get, _CA_VARIABLES)) if path]
    if not given:
        try:
            import certifi  # present with most HTTP clients; some Pythons find no system certificates
        except ImportError:
            return context
        given = [certifi.where()]
    for path in given:
        try:
            context.load_verify_locations(cafile=path)
        except OSError:
            raise DownloadError("a certificate file named in the environment cannot be read") from None
    return context
