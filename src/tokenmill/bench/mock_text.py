"""What the mock says: text that follows from (seed, prompt), so that a lost or repeated chunk shows.

Token `i` of an answer is the word `" <i>.<four hex digits>"`; the digits hash the key and `i`. One word (a
run without white space) counts as one token, in prompts and answers alike; a prompt of token ids has as
many tokens as ids.
"""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Sequence

Prompt = str | Sequence[int]

_DIRECTIVE = re.compile(r"\[\[mock (\{.*?\})\]\]", re.DOTALL)


def split_directive(text: str) -> tuple[str, str | None]:
    """Takes `[[mock {...}]]` out of a prompt: (prompt without it, the JSON or None).

    The directive passes through any gateway, and neither counts as tokens nor changes the answer.
    """
    found = _DIRECTIVE.search(text)
    if found is None:
        return text, None
    return text[: found.start()] + text[found.end() :], found[1]


def with_directive(text: str, json: str) -> str:
    """The inverse of `split_directive`."""
    return f"{text}[[mock {json}]]"


def count_tokens(prompt: Prompt) -> int:
    return len(prompt.split()) if isinstance(prompt, str) else len(prompt)


def answer_key(seed: int, prompt: Prompt) -> bytes:
    """What an answer depends on; the same prompt gets the same answer, like greedy decoding."""
    body = " ".join(prompt.split()) if isinstance(prompt, str) else repr(list(prompt))
    return hashlib.blake2b(f"{seed}\0{body}".encode(), digest_size=8).digest()


def token(key: bytes, index: int) -> str:
    """Token `index` of the answer with this key. Plain ASCII, nothing JSON would escape."""
    return f" {index}.{zlib.crc32(b'%b%d' % (key, index)) & 0xFFFF:04x}"


def expected_text(seed: int, prompt: Prompt, tokens: int) -> str:
    """The whole answer of `tokens` tokens."""
    key = answer_key(seed, prompt)
    return "".join(token(key, index) for index in range(tokens))
