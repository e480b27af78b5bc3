"""The latencies of one request, by the definitions of `summary`. All in seconds."""

from __future__ import annotations

from tokenmill.bench.record import Record


def request_latencies(record: Record) -> dict[str, float]:
    """Every latency this request has, by name. For requests that succeeded."""
    if record.sent is None or record.end is None:
        return {}
    found = {"client_delay": record.sent - record.scheduled}
    n = record.tokens
    for suffix, start in (("from_schedule", record.scheduled), ("from_send", record.sent)):
        e2e = record.end - start
        found[f"e2e_{suffix}"] = e2e
        if n:
            found[f"ntpot_{suffix}"] = e2e / n
        if record.first_token is not None:
            found[f"ttft_any_{suffix}"] = record.first_token - start
        if record.first_content is not None:
            found[f"ttft_content_{suffix}"] = record.first_content - start
    if record.first_token is not None and n >= 2:
        found["tpot"] = (record.end - record.first_token) / (n - 1)
    return found


def token_gaps(record: Record) -> tuple[list[float], bool]:
    """(gap per token behind each gap, whether the server counted the tokens of each frame itself).

    Without such counts the frames of a request share its usage evenly. One token more than frames is no
    sign of shared frames: an end token is counted and has no text.
    """
    gaps = record.gaps
    if len(record.gap_tokens) == len(gaps):
        return [gap / max(1, tokens) for gap, tokens in zip(gaps, record.gap_tokens, strict=True)], True
    frames = len(record.token_times)
    tokens = record.tokens
    each = tokens / frames if tokens > frames + 1 else 1.0
    return [gap / each for gap in gaps], False


def meets(record: Record, slo: dict[str, float]) -> bool:
    """Whether a request succeeded within every limit; `slo` maps latency names to seconds.

    A one-token answer has no tpot and cannot miss its limit; any other latency that is missing does.
    """
    if not record.ok:
        return False
    found = request_latencies(record)
    if record.tokens == 1:
        found.setdefault("tpot", 0.0)
    return all(name in found and found[name] <= limit for name, limit in slo.items())
