"""Request fields that every generating route shares, as sampling parameters."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tokenmill.core import bounds
from tokenmill.core.bounds import show
from tokenmill.core.errors import ContextLengthExceeded, InvalidRequest, ModelNotFound, UnsupportedParameter
from tokenmill.core.request import Grammar, SamplingParams
from tokenmill.gateway.served import ServedModel

Body = Mapping[str, object]


def check_model(body: Body, model: ServedModel, *, required: bool = True) -> None:
    """The name must be a served one. Raises InvalidRequest or ModelNotFound."""
    if "model" not in body:
        if required:
            raise InvalidRequest(f"model is missing; this server has {_names(model)}", param="model")
        return
    name = bounds.text("model", body["model"])
    if name not in model.names:
        raise model_not_found(name, model)


def model_not_found(name: str, model: ServedModel) -> ModelNotFound:
    return ModelNotFound(f"model {show(name)} is not here; this server has {_names(model)}", param="model")


def _names(model: ServedModel) -> str:
    return ", ".join(map(show, model.names))


def sampling_params(
    body: Body,
    *,
    vocab_size: int,
    max_tokens: int | None,
    logprobs: int | None,
    grammar: Grammar | None,
) -> SamplingParams:
    """The shared fields, each held against `core.bounds`. Raises InvalidRequest."""

    def number(name: str, default: float) -> float:
        return bounds.number(name, body[name]) if name in body else default

    params = SamplingParams(
        temperature=number("temperature", 1),
        top_p=number("top_p", 1),
        min_p=number("min_p", 0),
        presence_penalty=number("presence_penalty", 0),
        frequency_penalty=number("frequency_penalty", 0),
        repetition_penalty=number("repetition_penalty", 1),
        top_k=_top_k(body.get("top_k", 0)),
        logit_bias=bounds.logit_bias(body.get("logit_bias", {})),
        seed=bounds.integer("seed", body["seed"]) if "seed" in body else None,
        n=bounds.integer("n", body.get("n", 1)),
        logprobs=logprobs,
        stop=bounds.stops(body.get("stop", [])),
        stop_token_ids=bounds.token_ids(
            "stop_token_ids", body.get("stop_token_ids", []), max_items=bounds.MAX_STOP_TOKEN_IDS
        ),
        min_tokens=bounds.integer("min_tokens", body.get("min_tokens", 0)),
        max_tokens=max_tokens,
        ignore_eos=flag(body, "ignore_eos"),
        grammar=grammar,
    )
    bounds.sampling(params, vocab_size)
    return params


def output_bound(body: Body) -> tuple[str, object] | None:
    """The name and unchecked value of the bound on output. It has two names; both may come if they agree."""
    given = [(name, body[name]) for name in ("max_completion_tokens", "max_tokens") if name in body]
    if len(given) == 2 and given[0][1] != given[1][1]:
        raise InvalidRequest(
            "max_tokens and max_completion_tokens mean the same and must agree; send one of them",
            param="max_tokens",
        )
    return given[0] if given else None


def prompt_alternatives(body: Body, *, stream: bool) -> int | None:
    """`prompt_logprobs`: alternatives a position of the prompt to report; None for nothing."""
    if "prompt_logprobs" not in body:
        return None
    if stream:
        raise InvalidRequest("prompt_logprobs needs stream: false", param="prompt_logprobs")
    return bounds.integer("prompt_logprobs", body["prompt_logprobs"])


def _top_k(value: object) -> int:
    """-1 is how other servers write "the whole vocabulary"."""
    return 0 if value == -1 else bounds.integer("top_k", value)


def flag(body: Body, name: str, default: bool = False) -> bool:
    return bounds.boolean(name, body[name]) if name in body else default


def streaming(body: Body) -> tuple[bool, bool]:
    """`stream`, and whether its end tells the usage."""
    stream = flag(body, "stream")
    if "stream_options" not in body:
        return stream, False
    options = body["stream_options"]
    if not isinstance(options, dict):
        raise InvalidRequest(f"stream_options must be an object, not {show(options)}", param="stream_options")
    if not stream:
        raise InvalidRequest("stream_options needs stream: true", param="stream_options")
    given = {name: value for name, value in options.items() if value is not None}
    for name, value in given.items():
        if name not in ("include_usage", "include_obfuscation"):
            raise UnsupportedParameter(
                f"unknown parameter stream_options.{name[:64]}; did you mean include_usage?",
                param=f"stream_options.{name[:64]}",
            )
        bounds.boolean(f"stream_options.{name}", value)
    return stream, given.get("include_usage") is True


def encode(model: ServedModel, text: str, *, add_special: bool) -> list[int]:
    """The text's token ids. Raises ContextLengthExceeded before any work on what can never fit."""
    most = model.max_model_len * model.tokenizer.longest_token_bytes
    if (size := len(text.encode("utf-8", "surrogatepass"))) > most:
        raise ContextLengthExceeded(
            f"this model holds {model.max_model_len} tokens, which are at most {most} bytes of text; "
            f"the prompt has {size} bytes"
        )
    return model.tokenizer.encode(text, add_special=add_special)


def check_prompt(prompt_ids: Sequence[int], max_tokens: int | None, model: ServedModel) -> None:
    """Prompt and asked-for output must fit together; without a bound, one token of output.

    Raises ContextLengthExceeded, or InvalidRequest for what is no prompt of this model.
    """
    prompt_tokens, max_model_len = len(prompt_ids), model.max_model_len
    if prompt_tokens + (1 if max_tokens is None else max_tokens) > max_model_len:
        asked = "" if max_tokens is None else f", and {max_tokens} more are asked for"
        raise ContextLengthExceeded(
            f"this model holds {max_model_len} tokens, prompt and output together; "
            f"the prompt has {prompt_tokens}{asked}"
        )
    bounds.prompt(prompt_ids, model.vocab_size)
