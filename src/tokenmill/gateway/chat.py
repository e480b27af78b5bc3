"""POST /v1/chat/completions."""

from __future__ import annotations

from msgspec.structs import replace

from tokenmill.core import bounds
from tokenmill.core.errors import InvalidRequest
from tokenmill.gateway.answer_form import AnswerForm, check_form
from tokenmill.gateway.body import read_json_object
from tokenmill.gateway.chat_prompt import (
    Conversation,
    chat_prompt,
    template_of,
    template_variables,
)
from tokenmill.gateway.chat_render import ChatRenderer
from tokenmill.gateway.generation import Job, generate, make_request
from tokenmill.gateway.grammar_errors import Blame, blaming
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.messages import parse_messages
from tokenmill.gateway.openai_fields import CHAT
from tokenmill.gateway.openai_types import Head
from tokenmill.gateway.reasoning import thinking_of
from tokenmill.gateway.sampling import (
    Body,
    check_model,
    check_prompt,
    flag,
    output_bound,
    prompt_alternatives,
    sampling_params,
    streaming,
)
from tokenmill.gateway.served import Serving
from tokenmill.gateway.structured import parse_form
from tokenmill.gateway.tools.declared import parse_offer


async def chat_completions(serving: Serving, exchange: Exchange) -> None:
    """Answers one chat request."""
    exchange.prompt_field = "messages"
    await generate(serving, exchange, _prepare)


async def _prepare(serving: Serving, exchange: Exchange) -> Job:
    model = serving.model
    body = await read_json_object(exchange, serving.limits.body_s)
    check_model(body, model)
    CHAT.check(body)
    messages = parse_messages(body.get("messages", []))
    template = template_of(model)
    offer = parse_offer(body)
    asked = parse_form(body)
    check_form(offer, asked)
    sampling = sampling_params(
        body,
        vocab_size=model.vocab_size,
        max_tokens=_max_tokens(body),
        logprobs=_logprobs(body),
        grammar=asked.grammar if asked else None,
    )
    stream, include_usage = streaming(body)
    sampling = replace(sampling, prompt_logprobs=prompt_alternatives(body, stream=stream))
    conversation = Conversation(messages, offer.tools if offer else (), template_variables(body))
    prompt = await exchange.unless_gone(serving.tokenizer_thread.run(chat_prompt, model, conversation))
    offer = prompt.family.limit(offer) if offer else None
    check_prompt(prompt.ids, sampling.max_tokens, model)
    bounds.reported_logprobs(len(prompt.ids), sampling.prompt_logprobs)
    special_tokens = model.tokenizer.special_tokens
    form = AnswerForm(
        offer,
        prompt.family.syntax,
        thinking_of(template.source, prompt.text, special_tokens),
        sampling.grammar,
        special_tokens,
    )
    request = make_request(serving, exchange, prompt.ids, form.constrain(sampling))
    renderer = ChatRenderer(
        Head.new("chatcmpl-", serving.clock, model.name),
        logprobs=sampling.logprobs is not None,
        include_usage=include_usage,
        make_reader=form.reader,
        calling=offer is not None,
        prompt_logprobs=sampling.prompt_logprobs,
    )
    source = model.replica.generate(request)
    if (grammar := request.sampling.grammar) is not None:
        source = blaming(source, Blame(grammar, asked, offer))
    return Job([source], sampling.n, renderer, renderer if stream else None)


def _max_tokens(body: Body) -> int | None:
    bound = output_bound(body)
    return None if bound is None else bounds.integer("max_completion_tokens", bound[1], param=bound[0])


def _logprobs(body: Body) -> int | None:
    """Alternatives a position to report; None for no log-probabilities at all."""
    wanted = flag(body, "logprobs")
    if "top_logprobs" not in body:
        return 0 if wanted else None
    top = bounds.integer("top_logprobs", body["top_logprobs"])
    if not wanted and top:
        raise InvalidRequest("top_logprobs needs logprobs: true", param="top_logprobs")
    return top if wanted else None
