"""A small HTTP server that gives files as good and bad servers do."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit


@dataclass
class Seen:
    """One request."""

    path: str
    headers: dict[str, str]


@dataclass
class FileServer:
    """What it serves, how badly, and what it was asked.

    Attributes:
        files: path -> content, or a status to answer, or an address to redirect to.
        cuts: bytes after which each coming answer is cut, first one first.
        statuses: statuses that come before any answer, first one first; with a Retry-After of 7 seconds.
        ranges: whether `Range` is understood.
        shift: bytes by which a continuation starts at the wrong place.
        lengths: whether an answer says how long it is.
    """

    files: dict[str, bytes | int | str] = field(default_factory=dict)
    etag: str = '"one"'
    cuts: list[int] = field(default_factory=list)
    statuses: list[int] = field(default_factory=list)
    ranges: bool = True
    shift: int = 0
    lengths: bool = True
    seen: list[Seen] = field(default_factory=list)
    url: str = ""

    def json(self, path: str, value: object) -> None:
        self.files[path] = json.dumps(value).encode()

    def bodies_of(self, path: str) -> list[str]:
        """The Range headers of the requests for a path; an empty string where there was none."""
        return [seen.headers.get("range", "") for seen in self.seen if seen.path == path]


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, request: object, client_address: object) -> None:
        """Clients that leave early are part of what is tested."""


@contextmanager
def file_server() -> Iterator[FileServer]:
    state = FileServer()
    server = _Server(("127.0.0.1", 0), _handler(lambda: state))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
    thread.start()
    state.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield state
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def _handler(state_of: Callable[[], FileServer]) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            state = state_of()
            path = urlsplit(self.path).path
            state.seen.append(Seen(path, {name.lower(): value for name, value in self.headers.items()}))
            if state.statuses:
                return self.answer(state.statuses.pop(0), {"Retry-After": "7"})
            content = state.files.get(path, 404)
            if isinstance(content, int):
                return self.answer(content, {"X-Error-Code": "RepoNotFound"} if content == 404 else {})
            if isinstance(content, str):
                return self.answer(302, {"Location": content})
            return self.send_file(state, content)

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in headers.items():
                self.send_header(name, value)
            if "Content-Length" not in headers and state_of().lengths:
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def send_file(self, state: FileServer, content: bytes) -> None:
            headers = {"ETag": state.etag} if state.etag else {}
            headers["Content-Type"] = "text/html" if self.path.endswith("/") else "application/octet-stream"
            status, start = 200, 0
            wanted = self.headers.get("Range")
            if wanted and state.ranges and self.headers.get("If-Range", state.etag) == state.etag:
                start = int(wanted.removeprefix("bytes=").removesuffix("-"))
                if start >= len(content):
                    return self.answer(416, {"Content-Range": f"bytes */{len(content)}"})
                start += state.shift
                status = 206
                headers["Content-Range"] = f"bytes {start}-{len(content) - 1}/{len(content)}"
            body = content[start:]
            cut = state.cuts.pop(0) if state.cuts else len(body)
            if state.lengths:
                headers["Content-Length"] = str(len(body))
            self.answer(status, headers, body[:cut])
            return None

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler
