"""Messages of errors: one printable line of bounded length, whatever they quote."""

from __future__ import annotations

import pytest

from tokenmill.core.errors import MAX_MESSAGE_CHARS, ModelFileError, TokenmillError


@pytest.mark.parametrize(
    ("given", "shown"),
    [
        ("the file is too short", "the file is too short"),
        ("größer als 日本", "größer als 日本"),
        ("tensor 'a\x1b[2J\r\nERROR forged'", r"tensor 'a\x1b[2J\r\nERROR forged'"),
        ("token '\ud800'", r"token '\ud800'"),
        ("gnp.\u202eexe", r"gnp.\u202eexe"),
    ],
)
def test_what_cannot_be_printed_is_written_out(given: str, shown: str) -> None:
    error = ModelFileError(given)
    assert error.message == str(error) == shown


def test_the_length_is_bounded() -> None:
    for text in ("x" * 100_000, "\0" * 100_000):
        assert len(TokenmillError(text).message) == MAX_MESSAGE_CHARS
