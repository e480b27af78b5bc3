"""Where a JSON object in a stream of text ends."""

from __future__ import annotations

import re

_STOPS = re.compile(r'["{}\[\]]')
_STRING_STOPS = re.compile(r'["\\]')


class ObjectEnd:
    """Follows brackets and strings of one object, however its text is cut. It does not validate.

    Attributes:
        depth: brackets open now.
    """

    def __init__(self, depth: int = 0) -> None:
        self.depth = depth
        self._in_string = False
        self._escaped = False

    def find(self, text: str) -> int | None:
        """Takes the next text; the place after the bracket that closes the object, None before it came."""
        place = 0
        while place < len(text):
            if self._escaped:
                self._escaped = False
                place += 1
                continue
            found = (_STRING_STOPS if self._in_string else _STOPS).search(text, place)
            if found is None:
                return None
            place = found.end()
            match found[0]:
                case '"':
                    self._in_string = not self._in_string
                case "\\":
                    self._escaped = True
                case "{" | "[":
                    self.depth += 1
                case _:
                    self.depth -= 1
                    if self.depth == 0:
                        return place
        return None
