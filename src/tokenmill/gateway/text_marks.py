"""Marks in text that comes in pieces."""

from __future__ import annotations

SPACE = " \t\r\n"


def partial(text: str, mark: str) -> int:
    """Length of the longest end of `text` that is a beginning of the mark and not all of it."""
    sizes = range(min(len(text), len(mark) - 1), 0, -1)
    return next((size for size in sizes if mark.startswith(text[-size:])), 0)
