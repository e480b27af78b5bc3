"""POST /v1/embeddings."""

from __future__ import annotations

import asyncio
import base64
import struct
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Literal

import msgspec

from tokenmill.core import bounds
from tokenmill.core.bounds import MAX_EMBEDDING_INPUTS, MAX_EMBEDDING_TOKENS, show
from tokenmill.core.delta import Delta
from tokenmill.core.errors import InvalidRequest, NotSupported, UnsupportedParameter
from tokenmill.core.request import GenerateRequest, Pooling, SamplingParams
from tokenmill.fleet.replica import Replica
from tokenmill.gateway.body import read_json_object
from tokenmill.gateway.generation import Job, generate, make_request
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.openai_fields import EMBEDDINGS
from tokenmill.gateway.openai_types import UsageSum
from tokenmill.gateway.prompts import Prompt, parse_texts
from tokenmill.gateway.sampling import Body, check_model, check_prompt, encode
from tokenmill.gateway.served import ServedModel, Serving

# Inputs of one request that the replica has at once; the others wait here, where they take no turns.
AT_ONCE = 32

Encoding = Literal["float", "base64"]


class EmbeddingObject(msgspec.Struct, kw_only=True):
    """`embedding` is a list of numbers, or the same as base64 of little-endian float32."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: list[float] | str


class EmbeddingUsage(msgspec.Struct):
    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, kw_only=True):
    object: Literal["list"] = "list"
    data: list[EmbeddingObject]
    model: str
    usage: EmbeddingUsage


async def embeddings(serving: Serving, exchange: Exchange) -> None:
    """One embedding of unit length an input. A refused input refuses all before anything starts."""
    exchange.prompt_field = "input"
    await generate(serving, exchange, _prepare)


async def _prepare(serving: Serving, exchange: Exchange) -> Job:
    model = serving.model
    body = await read_json_object(exchange, serving.limits.body_s)
    check_model(body, model)
    EMBEDDINGS.check(body)
    pooling = _pooling(model)
    encoding = _encoding(body)
    _check_dimensions(body, model)
    inputs = parse_inputs(body, model)
    ids = await exchange.unless_gone(serving.tokenizer_thread.run(_encode, model, inputs))
    slots = asyncio.Semaphore(AT_ONCE)
    requests = (make_request(serving, exchange, each, SamplingParams(), pooling) for each in ids)
    sources = [_embed(model.replica, request, slots) for request in requests]
    return Job(sources, 1, EmbeddingRenderer(model.name, encoding))


@dataclass(frozen=True)
class EmbeddingRenderer:
    """Writes the embeddings of a request, in the order of its inputs."""

    model: str
    encoding: Encoding

    def whole(self, deltas: Sequence[Delta], usage: UsageSum) -> EmbeddingList:
        data = [
            EmbeddingObject(index=delta.index, embedding=_written(delta.embedding, self.encoding))
            for delta in deltas
        ]
        counted = EmbeddingUsage(usage.prompt_tokens, usage.prompt_tokens)
        return EmbeddingList(data=data, model=self.model, usage=counted)


def _pooling(model: ServedModel) -> Pooling:
    if model.pooling is None:
        raise NotSupported(
            f"{show(model.name)} does not say how its token states become an embedding: start the server "
            "with --pooling mean or --pooling last, whichever the model was trained for"
        )
    return model.pooling


def _encoding(body: Body) -> Encoding:
    value = body.get("encoding_format", "float")
    if value == "float" or value == "base64":
        return value
    raise InvalidRequest(
        f"encoding_format must be float or base64, not {show(value)}", param="encoding_format"
    )


def _check_dimensions(body: Body, model: ServedModel) -> None:
    """A shorter embedding means something only where a model was trained for it, and none here says so."""
    if "dimensions" not in body:
        return
    dimensions = bounds.integer("dimensions", body["dimensions"])
    if dimensions != model.hidden:
        raise UnsupportedParameter(
            f"dimensions is not supported; this model's embeddings have {model.hidden}, not {dimensions}",
            param="dimensions",
        )


def parse_inputs(body: Body, model: ServedModel) -> list[Prompt]:
    """`input`: a string, a list of strings, a list of token ids, or a list of such lists; none empty."""
    if "input" not in body:
        raise InvalidRequest("input is missing", param="input")
    inputs = parse_texts("input", body["input"], model, most=MAX_EMBEDDING_INPUTS)
    if not all(inputs):
        raise InvalidRequest("input must not hold an empty text", param="input")
    return inputs


def _encode(model: ServedModel, inputs: Sequence[Prompt]) -> list[Sequence[int]]:
    """Token ids of each input, with what the model wants around a text. The first that is refused ends it."""
    found: list[Sequence[int]] = []
    total = 0
    for text in inputs:
        ids = text if isinstance(text, tuple) else encode(model, text, add_special=True)
        if not ids:
            raise InvalidRequest("input holds a text that has no tokens", param="input")
        bounds.in_vocabulary("input", ids, model.vocab_size)
        check_prompt(ids, 0, model)
        total += len(ids)
        if total > MAX_EMBEDDING_TOKENS:
            raise InvalidRequest(
                f"input must have at most {MAX_EMBEDDING_TOKENS} tokens in all, not {total} or more",
                param="input",
            )
        found.append(ids)
    return found


async def _embed(
    replica: Replica, request: GenerateRequest, slots: asyncio.Semaphore
) -> AsyncGenerator[Delta, None]:
    async with slots, aclosing(replica.generate(request)) as deltas:
        async for delta in deltas:
            yield delta


def _written(embedding: bytes, encoding: Encoding) -> list[float] | str:
    if encoding == "base64":
        return base64.b64encode(embedding).decode()
    return list(struct.unpack(f"<{len(embedding) // 4}f", embedding))
