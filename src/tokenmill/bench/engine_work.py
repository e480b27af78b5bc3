"""What a tokenmill engine did, read from its /metrics page."""

from __future__ import annotations

from collections import defaultdict

import msgspec
from prometheus_client.parser import text_string_to_metric_families

from tokenmill.bench.asking import get


class EngineWork(msgspec.Struct, frozen=True):
    """Totals since the engine started.

    Attributes:
        steps: steps that computed something. busy_s: time in them.
        computed_tokens: tokens through the model, of prompts and answers. generated_tokens: sampled.
    """

    steps: float = 0.0
    busy_s: float = 0.0
    computed_tokens: float = 0.0
    generated_tokens: float = 0.0

    def since(self, earlier: EngineWork) -> EngineWork:
        return EngineWork(*(getattr(self, name) - getattr(earlier, name) for name in self.__struct_fields__))


def engine_work(page: str) -> EngineWork:
    """Reads a metrics page; a series that is missing counts as nothing done."""
    totals: dict[str, float] = defaultdict(float)
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.labels.get("phase") != "idle_wait":
                totals[sample.name] += sample.value
    return EngineWork(
        steps=totals["tokenmill_engine_step_tokens_count"],
        busy_s=totals["tokenmill_engine_step_seconds_sum"],
        computed_tokens=totals["tokenmill_engine_step_tokens_sum"],
        generated_tokens=totals["tokenmill_engine_generation_tokens_total"],
    )


async def read_engine_work(url: str) -> EngineWork:
    """Fetches the page and reads it. Raises ServerFailed."""
    return engine_work((await get(url, "/metrics", {})).decode())
