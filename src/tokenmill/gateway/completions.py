"""POST /v1/completions."""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from tokenmill.core import bounds
from tokenmill.core.bounds import MAX_CHOICES, MAX_PROMPTS
from tokenmill.core.errors import InvalidRequest
from tokenmill.core.request import Grammar, SamplingParams
from tokenmill.gateway.body import read_json_object
from tokenmill.gateway.completion_render import Asked, Echo, TextRenderer
from tokenmill.gateway.generation import Job, generate, make_request
from tokenmill.gateway.grammar_errors import Blame, blaming
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.inbox import Source
from tokenmill.gateway.openai_fields import COMPLETIONS
from tokenmill.gateway.openai_types import Head
from tokenmill.gateway.prompts import Prompt, parse_texts
from tokenmill.gateway.sampling import (
    Body,
    check_model,
    check_prompt,
    encode,
    flag,
    output_bound,
    prompt_alternatives,
    sampling_params,
    streaming,
)
from tokenmill.gateway.served import ServedModel, Serving
from tokenmill.gateway.structured import parse_form

DEFAULT_MAX_TOKENS = 16


async def completions(serving: Serving, exchange: Exchange) -> None:
    """Answers one text-completion request. A refused prompt refuses all before anything starts."""
    exchange.prompt_field = "prompt"
    await generate(serving, exchange, _prepare)


async def _prepare(serving: Serving, exchange: Exchange) -> Job:
    model = serving.model
    body = await read_json_object(exchange, serving.limits.body_s)
    check_model(body, model)
    COMPLETIONS.check(body)
    prompts = parse_prompts(body, model)
    stream, include_usage = streaming(body)
    asked = _asked(body, len(prompts), stream)
    max_tokens = _max_tokens(body, prompt_alone=asked.echo or asked.prompt_logprobs is not None)
    form = parse_form(body)
    sampling = _sampling(body, asked, max_tokens, model, form.grammar if form else None)
    least = None if output_bound(body) is None else max_tokens  # the default gives way
    ids, echoes = await exchange.unless_gone(
        serving.tokenizer_thread.run(_encode, model, prompts, least, sampling, asked)
    )

    def source(prompt_ids: Sequence[int]) -> Source:
        fitting = min(max_tokens, model.max_model_len - len(prompt_ids))
        request = make_request(serving, exchange, prompt_ids, replace(sampling, max_tokens=fitting))
        made = model.replica.generate(request)
        return made if form is None else blaming(made, Blame(form.grammar, form))

    head = Head.new("cmpl-", serving.clock, model.name)
    renderer = TextRenderer(head, asked, echoes, include_usage)
    return Job([source(prompt) for prompt in ids], asked.best_of, renderer, renderer if stream else None)


def parse_prompts(body: Body, model: ServedModel) -> list[Prompt]:
    """`prompt`: a string, a list of strings, a list of token ids, or a list of such lists."""
    if "prompt" not in body:
        raise InvalidRequest("prompt is missing", param="prompt")
    return parse_texts("prompt", body["prompt"], model, most=MAX_PROMPTS)


def _asked(body: Body, prompts: int, stream: bool) -> Asked:
    """What the answer must show, and of how many choices."""
    n = bounds.integer("n", body.get("n", 1))
    best_of = bounds.integer("best_of", body.get("best_of", n))
    if best_of < n:
        raise InvalidRequest(f"best_of must be at least n ({n}), not {best_of}", param="best_of")
    if best_of > n and stream:
        raise InvalidRequest("a stream cannot take back choices: best_of must equal n", param="best_of")
    if prompts * best_of > MAX_CHOICES:
        name = "best_of" if best_of > n else "n"
        raise InvalidRequest(
            f"prompts times {name} must be at most {MAX_CHOICES}, not {prompts} x {best_of}", param=name
        )
    return Asked(n, best_of, flag(body, "echo"), _logprobs(body), prompt_alternatives(body, stream=stream))


def _max_tokens(body: Body, *, prompt_alone: bool) -> int:
    """0 asks for the prompt alone, so it means something only where the answer shows that."""
    name, value = output_bound(body) or ("max_tokens", DEFAULT_MAX_TOKENS)
    row = "max_tokens" if prompt_alone else "max_completion_tokens"
    return bounds.integer(row, value, param=name)


def _logprobs(body: Body) -> int | None:
    if "logprobs" not in body or body["logprobs"] is False:
        return None
    return bounds.integer("completions_logprobs", body["logprobs"], param="logprobs")


def _sampling(
    body: Body, asked: Asked, max_tokens: int, model: ServedModel, grammar: Grammar | None
) -> SamplingParams:
    """What the replica is asked for: enough for every part of the answer."""
    ranked = 0 if asked.best_of > asked.n else None
    logprobs = ranked if asked.logprobs is None else asked.logprobs
    echoed = asked.logprobs if asked.echo else None
    wanted = [count for count in (echoed, asked.prompt_logprobs) if count is not None]
    params = sampling_params(
        body, vocab_size=model.vocab_size, max_tokens=max_tokens, logprobs=logprobs, grammar=grammar
    )
    return replace(params, n=asked.best_of, prompt_logprobs=max(wanted, default=None))


def _encode(
    model: ServedModel,
    prompts: Sequence[Prompt],
    max_tokens: int | None,
    sampling: SamplingParams,
    asked: Asked,
) -> tuple[list[Sequence[int]], list[Echo]]:
    """Token ids of each prompt, and what is echoed of each if it is wanted (else nothing).

    The first prompt that is refused ends the work on all.
    """
    ids: list[Sequence[int]] = []
    echoes: list[Echo] = []
    total = 0
    field = "logprobs" if asked.prompt_logprobs is None else "prompt_logprobs"
    for prompt in prompts:
        prompt_ids = prompt if isinstance(prompt, tuple) else encode(model, prompt, add_special=True)
        check_prompt(prompt_ids, max_tokens, model)
        total += len(prompt_ids) * asked.n
        bounds.reported_logprobs(total, sampling.prompt_logprobs, param=field)
        ids.append(prompt_ids)
        if asked.echo:
            text = model.tokenizer.decode(prompt) if isinstance(prompt, tuple) else prompt
            echoes.append(Echo.of(text, prompt_ids[0], model.tokenizer))
    return ids, echoes
