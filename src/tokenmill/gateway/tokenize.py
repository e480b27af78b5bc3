"""POST /tokenize and /detokenize, as vLLM has them."""

from __future__ import annotations

from collections.abc import Sequence

from tokenmill.core import bounds
from tokenmill.core.errors import InvalidRequest
from tokenmill.gateway.body import read_json_object
from tokenmill.gateway.chat_prompt import Conversation, chat_prompt, template_variables
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.messages import parse_messages
from tokenmill.gateway.openai_fields import DETOKENIZE, TOKENIZE
from tokenmill.gateway.sampling import Body, check_model, encode, flag
from tokenmill.gateway.served import ServedModel, Serving
from tokenmill.gateway.tools.declared import parse_tools


async def tokenize(serving: Serving, exchange: Exchange) -> None:
    """Token ids of a `prompt`, or of `messages` as the model would see them."""
    model = serving.model
    with serving.entry():
        body = await read_json_object(exchange, serving.limits.body_s)
        check_model(body, model, required=False)
        TOKENIZE.check(body)
        exchange.prompt_field = "messages" if "messages" in body else "prompt"
        ids, texts = await exchange.unless_gone(serving.tokenizer_thread.run(_tokens, model, body))
    await exchange.respond_json(
        {"count": len(ids), "max_model_len": model.max_model_len, "tokens": ids, "token_strs": texts}
    )


def _tokens(model: ServedModel, body: Body) -> tuple[Sequence[int], list[str] | None]:
    wanted = flag(body, "return_token_strs")
    ids = _ids(model, body)
    return ids, [model.tokenizer.token_text(token) for token in ids] if wanted else None


def _ids(model: ServedModel, body: Body) -> Sequence[int]:
    if ("prompt" in body) == ("messages" in body):
        raise InvalidRequest("send either prompt or messages", param="prompt")
    if "prompt" in body:
        for name in ("add_generation_prompt", "tools", "chat_template_kwargs"):
            if name in body:
                raise InvalidRequest(f"{name} needs messages", param=name)
        add_special = flag(body, "add_special_tokens", True)
        return encode(model, bounds.text("prompt", body["prompt"]), add_special=add_special)
    if flag(body, "add_special_tokens"):
        raise InvalidRequest(
            "add_special_tokens needs a prompt: chat templates add their own", param="add_special_tokens"
        )
    conversation = Conversation(
        parse_messages(body["messages"]),
        parse_tools(body.get("tools", [])),
        template_variables(body),
        flag(body, "add_generation_prompt", True),
    )
    return chat_prompt(model, conversation).ids


async def detokenize(serving: Serving, exchange: Exchange) -> None:
    """The text of `tokens`, special tokens written out."""
    model = serving.model
    with serving.entry():
        body = await read_json_object(exchange, serving.limits.body_s)
        check_model(body, model, required=False)
        DETOKENIZE.check(body)
        if "tokens" not in body:
            raise InvalidRequest("tokens is missing", param="tokens")
        ids = bounds.token_ids("tokens", body["tokens"], max_items=bounds.MAX_DETOKENIZE_IDS)
        bounds.in_vocabulary("tokens", ids, model.vocab_size)
        decoding = serving.tokenizer_thread.run(model.tokenizer.decode, ids, skip_special=False)
        text = await exchange.unless_gone(decoding)
    await exchange.respond_json({"prompt": text})
