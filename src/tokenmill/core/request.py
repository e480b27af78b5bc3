"""The one request every API dialect parses into."""

from __future__ import annotations

from typing import Literal

import msgspec

Pooling = Literal["mean", "last"]


class Grammar(msgspec.Struct, frozen=True):
    """What the whole output must match.

    Attributes:
        kind: json_schema, regex, or lark (a grammar in the dialect of Lark that llguidance reads).
        source: its text.
    """

    kind: Literal["json_schema", "regex", "lark"]
    source: str


class SamplingParams(msgspec.Struct, frozen=True, kw_only=True):
    """How to choose tokens. Ranges are in `core.bounds`.

    Attributes:
        temperature: 0 is greedy.
        top_k: 0 keeps the whole vocabulary.
        min_p: drops tokens less likely than this share of the likeliest one.
        logit_bias: token id -> value added to its logit.
        seed: same seed, same prompt, same text, whatever else runs; None draws one.
        n: independent completions of the same prompt.
        logprobs: alternatives to report a position; 0 only the chosen token, None nothing.
            Log-probabilities are raw: before temperature, penalties and bias.
        stop: strings that end the text; they are not part of it.
        stop_token_ids: tokens that end the text, beside the model's own ends.
        min_tokens: no end (EOS, stop token or stop string) before so many output tokens.
        max_tokens: None means up to the end of the context; 0 computes the prompt alone.
        ignore_eos: treat the model's end tokens as any other.
        prompt_logprobs: alternatives to report a position of the prompt, as `logprobs` does for the output.
        visible_ids: special tokens whose names appear in the text, where others leave no trace.
        grammar: what the output must match; None is free text.
    """

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    repetition_penalty: float = 1.0
    logit_bias: dict[int, float] = {}
    seed: int | None = None
    n: int = 1
    logprobs: int | None = None
    stop: tuple[str, ...] = ()
    stop_token_ids: tuple[int, ...] = ()
    min_tokens: int = 0
    max_tokens: int | None = None
    ignore_eos: bool = False
    prompt_logprobs: int | None = None
    visible_ids: tuple[int, ...] = ()
    grammar: Grammar | None = None


class TraceContext(msgspec.Struct, frozen=True):
    """W3C trace context as received: 32 and 16 hex digits."""

    trace_id: str
    parent_id: str
    sampled: bool = True


class GenerateRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One unit of work. No layer below the dialect knows which API the client spoke.

    Attributes:
        prompt_ids: token ids, BOS included where the model wants it.
        tier: strict priority, 0 first.
        deadline: monotonic seconds after which nobody wants the answer.
        pool: replica pool the tenant is bound to.
        pooling: asks for one embedding of the prompt instead of text; `sampling` is then not read.
        cache_salt: prefix-cache entries are shared only under the same salt.
        extra: allow-listed fields for foreign upstreams.
    """

    request_id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams = SamplingParams()
    model: str = ""
    tenant: str = "default"
    tier: int = 0
    deadline: float | None = None
    pool: str | None = None
    pooling: Pooling | None = None
    cache_salt: bytes = b""
    trace: TraceContext | None = None
    extra: dict[str, object] = {}
