"""How a mock server behaves: one plain struct, for the whole server or for one request."""

from __future__ import annotations

import random
from collections.abc import Iterator

import msgspec

from tokenmill.bench.distribution import parse, seeded
from tokenmill.core.errors import ConfigError

Spec = str | float

SERVER_FIELDS = frozenset({"seed", "slots", "max_waiting", "models", "fault_share", "fault_first"})
FAULT_FIELDS = frozenset(
    {
        "error_status",
        "retry_after_s",
        "stall_after",
        "stall_s",
        "reset_after",
        "error_after",
        "malformed_after",
        "omit_done",
        "head_delay_s",
        "refuse_usage",
    }
)


class MockScript(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Behaviour. Delays are seconds or a spec of `distribution`; a fault "after k" comes behind k tokens.

    Of the whole server only (SERVER_FIELDS):
        seed: of every text and every draw.
        slots: requests that generate at once; None is no limit. The rest wait in order of arrival.
        max_waiting: requests that wait for a slot; one more is refused with 503.
        models: what /v1/models lists; any name is served.
        fault_share, fault_first: the faults hit this share of the requests (drawn by seed and order of
            arrival), and only the first so many; faults a request asks for itself always hit it.

    Of each request:
        ttft_s: from getting a slot to the first token. gap_s: between tokens.
        tokens_per_chunk: tokens one stream chunk carries.
        output_tokens: length of the answer; None is max_tokens (16 where the request has none).
        reasoning_tokens: so many of the first tokens come as `reasoning_content`.

    Faults (FAULT_FIELDS):
        error_status: answer this status and nothing else. retry_after_s: the header to go with it.
        head_delay_s: wait this long before the response's first byte.
        stall_after, stall_s: after k tokens say nothing for this long; None is for ever.
        reset_after: after k tokens reset the TCP connection.
        error_after: after k tokens send an error frame, [DONE], and end (status 500 when not streaming).
        malformed_after: the chunk after k tokens is broken JSON; the stream goes on behind it.
        omit_done: end the stream without [DONE].
        refuse_usage: 400 for `stream_options`, as servers do that do not know it.
    """

    seed: int = 0
    slots: int | None = None
    max_waiting: int = 1024
    models: tuple[str, ...] = ("mock",)
    fault_share: float = 1.0
    fault_first: int | None = None

    ttft_s: Spec = 0.0
    gap_s: Spec = 0.0
    tokens_per_chunk: int = 1
    output_tokens: Spec | None = None
    reasoning_tokens: int = 0

    error_status: int | None = None
    retry_after_s: float | None = None
    head_delay_s: float = 0.0
    stall_after: int | None = None
    stall_s: float | None = None
    reset_after: int | None = None
    error_after: int | None = None
    malformed_after: int | None = None
    omit_done: bool = False
    refuse_usage: bool = False

    def __post_init__(self) -> None:
        for name in ("ttft_s", "gap_s", "output_tokens"):
            value = getattr(self, name)
            if value is not None:
                parse(value, name=name)
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ConfigError(f"{name} must be at least {least}, not {value}")
        if self.error_status is not None and not 400 <= self.error_status <= 599:
            raise ConfigError(f"error_status must be from 400 to 599, not {self.error_status}")
        if not self.models:
            raise ConfigError("models must name at least one model")
        if self.fault_share > 1:
            raise ConfigError(f"fault_share must be at most 1, not {self.fault_share}")


_LEAST = {
    "slots": 1,
    "max_waiting": 0,
    "fault_share": 0,
    "fault_first": 0,
    "tokens_per_chunk": 1,
    "reasoning_tokens": 0,
    "retry_after_s": 0,
    "head_delay_s": 0,
    "stall_after": 0,
    "stall_s": 0,
    "reset_after": 0,
    "error_after": 0,
    "malformed_after": 0,
}
_CALM = {
    field.name: field.default for field in msgspec.structs.fields(MockScript) if field.name in FAULT_FIELDS
}


def read_script(raw: bytes | str) -> MockScript:
    """A whole script from JSON. Raises ConfigError."""
    try:
        return msgspec.json.decode(raw, type=MockScript)
    except msgspec.MsgspecError as error:
        raise ConfigError(f"the script is not usable: {error}") from None


def with_request(script: MockScript, raw: bytes | str) -> MockScript:
    """The script as one request changes it, from the JSON it sent. Raises ConfigError."""
    try:
        changes = msgspec.json.decode(raw, type=dict[str, object])
    except msgspec.MsgspecError as error:
        raise ConfigError(f"x-mock is not usable: {error}") from None
    foreign = sorted(SERVER_FIELDS & changes.keys())
    if foreign:
        raise ConfigError(f"{foreign[0]} belongs to the whole server; a request cannot change it")
    return read_script(msgspec.json.encode({**msgspec.structs.asdict(script), **changes}))


def faults_hit(script: MockScript, ordinal: int) -> bool:
    """Whether request number `ordinal` (from 0, in order of arrival) gets the server's faults."""
    if script.fault_first is not None and ordinal >= script.fault_first:
        return False
    if script.fault_share >= 1.0:
        return True
    return seeded(script.seed, "fault", ordinal).random() < script.fault_share


def without_faults(script: MockScript) -> MockScript:
    return msgspec.structs.replace(script, **_CALM)


def answer_length(script: MockScript, max_tokens: int | None, rng: random.Random) -> tuple[int, bool]:
    """(tokens of the answer, whether max_tokens cut it)."""
    limit = 16 if max_tokens is None else max_tokens
    if script.output_tokens is None:
        return limit, True
    wanted = parse(script.output_tokens).sample_int(rng, least=0)
    return min(wanted, limit), wanted >= limit


def token_times(script: MockScript, rng: random.Random) -> Iterator[float]:
    """When each token is due, in seconds from getting a slot, a stall not counted. Endless."""
    gap = parse(script.gap_s)
    due = parse(script.ttft_s).sample(rng)
    while True:
        yield due
        due += gap.sample(rng)
