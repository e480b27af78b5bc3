"""Who may ask: one key for the whole server."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Sequence

from tokenmill.core.errors import Unauthorized


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
