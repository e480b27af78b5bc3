"""What is measured: one row of the table each."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Row:
    """One load.

    Attributes:
        kind: total is output tokens over the whole time, prefill included; prefill is prompt tokens over the
            time to the first token; decode is output tokens while every stream decodes and none prefills;
            http is a closed loop of streaming clients.
        prompt_tokens, output_tokens: of each request.
        target: tokens a second, over those of the best rival.
        repeats: times a process runs it, each time with other prompts; the median counts.
    """

    name: str
    kind: Literal["total", "prefill", "decode", "http"]
    streams: int
    prompt_tokens: int
    output_tokens: int
    target: float
    repeats: int = 1

    @property
    def requests(self) -> int:
        """Requests a run sends: streams at once, or two waves of them over HTTP."""
        return 2 * self.streams if self.kind == "http" else self.streams


# Short rows are repeated: one hiccup would be a tenth of them.
ROWS: Sequence[Row] = (
    Row("streams-1", "total", 1, 128, 128, 1.0, repeats=3),
    Row("streams-4", "total", 4, 128, 128, 1.4, repeats=2),
    Row("streams-16", "total", 16, 128, 128, 2.0),
    Row("streams-32", "total", 32, 128, 128, 2.5),
    Row("prefill-1024", "prefill", 1, 1024, 1, 1.8, repeats=3),
    # Contexts from 961 to 1088 tokens: 1024 on the average.
    Row("decode-16", "decode", 16, 960, 128, 2.0),
    Row("http-32", "http", 32, 128, 128, 2.0),
)
NAMES = tuple(row.name for row in ROWS)
