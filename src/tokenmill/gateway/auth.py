"""Who may ask: whoever has the key; without one, programs of this machine but no web pages."""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Sequence

from tokenmill.core.bounds import show
from tokenmill.core.errors import Forbidden, Unauthorized

_LOOPBACK = rb"(?:localhost|127(?:\.[0-9]{1,3}){3}|\[::1\])(?::[0-9]*)?"
_HOST = re.compile(_LOOPBACK, re.IGNORECASE)
_ORIGIN = re.compile(rb"https?://" + _LOOPBACK, re.IGNORECASE)


class KeyCheck:
    """Compares digests of fixed length in constant time; the key itself is not kept."""

    def __init__(self, api_key: str) -> None:
        self._digest = _digest(api_key.encode())

    def check(self, authorization: Sequence[bytes]) -> None:
        """`authorization` has every header of that name. Raises Unauthorized."""
        if not authorization:
            raise Unauthorized("an API key is needed: send it as `Authorization: Bearer KEY`")
        scheme, _, key = authorization[0].partition(b" ")
        known = hmac.compare_digest(_digest(key.strip()), self._digest)
        if not known or scheme.lower() != b"bearer" or len(authorization) > 1:
            raise Unauthorized("the API key is not valid")


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


def check_local(hosts: Sequence[bytes], origins: Sequence[bytes]) -> None:
    """Refuses what a browser sends for another site's page, whose name may point at the loopback.

    A server without a key listens on the loopback alone, so every honest name of it is in `_LOOPBACK`.
    Programs that are no browser may leave out both headers. Raises Forbidden.
    """
    for host in hosts:
        if not _HOST.fullmatch(host):
            raise Forbidden(
                f"without an API key the host must be localhost or a loopback address, not {_shown(host)}",
                code="foreign_host",
            )
    for origin in origins:
        if not _ORIGIN.fullmatch(origin):
            raise Forbidden(f"without an API key pages of {_shown(origin)} may not use this server")


def _shown(header: bytes) -> str:
    return show(header.decode("latin-1"))
