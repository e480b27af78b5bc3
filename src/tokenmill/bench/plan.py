"""What a load run does, as plain data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from tokenmill.bench.arrivals import Closed, Open
from tokenmill.bench.workload import Item, Workload
from tokenmill.core.errors import ConfigError

PATHS = {"chat": "/v1/chat/completions", "completions": "/v1/completions"}


@dataclass(frozen=True)
class LoadPlan:
    """One run. It ends by itself: after `max_requests`, or `max_seconds` plus at most `timeout_s`.

    Attributes:
        url: the server, without path.
        stream: False asks for whole answers, which have no first token and no gaps.
        usage: ask for the server's counts; continuous_usage: with every frame, as vLLM can.
        extra: fields to add to every body; None takes the field out.
        timeout_s: for one whole request.
        max_in_flight: an open loop sends no more than this at once; arrivals above it wait, and show
            as client delay.
        cancel_share: share of the requests (drawn by seed and index) that this client leaves after
            `cancel_after` frames with tokens.
        keep_text: keep the answers.
    """

    url: str
    load: Closed | Open = field(default_factory=Closed)
    workload: Workload = field(default_factory=Workload)
    api: Literal["chat", "completions"] = "chat"
    model: str = "mock"
    stream: bool = True
    usage: bool = True
    continuous_usage: bool = False
    extra: Mapping[str, object] = field(default_factory=dict)
    headers: Mapping[str, str] = field(default_factory=dict)
    max_requests: int = 100
    max_seconds: float = 60.0
    timeout_s: float = 300.0
    max_in_flight: int = 4096
    cancel_share: float = 0.0
    cancel_after: int = 1
    keep_text: bool = False

    def __post_init__(self) -> None:
        for name in ("max_requests", "max_in_flight", "cancel_after"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        for name in ("max_seconds", "timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} must be above 0, not {getattr(self, name)}")
        if not 0 <= self.cancel_share <= 1:
            raise ConfigError(f"cancel_share must be from 0 to 1, not {self.cancel_share}")
        if self.api == "chat" and self.workload.token_ids:
            raise ConfigError("token ids can only be sent with the completions API")
        if self.cancel_share and not self.stream:
            raise ConfigError("leaving after some tokens needs streaming")

    @property
    def endpoint(self) -> str:
        return self.url.rstrip("/") + PATHS[self.api]

    def body(self, item: Item) -> dict[str, object]:
        """The JSON body of one request."""
        body: dict[str, object] = {"model": self.model}
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": item.prompt}]
        else:
            body["prompt"] = item.prompt
        body |= {"max_tokens": item.max_tokens, "temperature": 0, "ignore_eos": True, "stream": self.stream}
        if self.stream and self.usage:
            options = {"include_usage": True}
            if self.continuous_usage:
                options["continuous_usage_stats"] = True
            body["stream_options"] = options
        body |= self.extra
        return {name: value for name, value in body.items() if value is not None}
