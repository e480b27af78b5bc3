"""GET /openapi.json: what this server takes and answers, as an OpenAPI 3.1 document."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field

import msgspec

from tokenmill.core.version import VERSION
from tokenmill.gateway import openai_fields as fields
from tokenmill.gateway.embeddings import EmbeddingList
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.openai_types import ChatCompletion, TextCompletion
from tokenmill.gateway.openapi_fields import CHAT_OWN, COMPLETIONS_OWN, Schema, body_schema
from tokenmill.gateway.served import ServedModel, Serving

_REF = "#/components/schemas/{name}"
_ERROR: Schema = {
    "type": "object",
    "properties": {
        "error": {
            "type": "object",
            "properties": {
                "message": {"type": "string"},
                "type": {"type": "string"},
                "param": {"type": ["string", "null"]},
                "code": {"type": ["string", "null"]},
            },
            "required": ["message", "type", "param", "code"],
        }
    },
    "required": ["error"],
}
_OBJECT: Schema = {"type": "object"}


def _reference(name: str) -> Schema:
    return {"$ref": _REF.format(name=name)}


@dataclass(frozen=True)
class Body:
    """A POST route: what it takes and what it answers.

    Attributes:
        streams: it may answer with events.
        own: fields that mean something else than on other routes.
    """

    summary: str
    taken: fields.Fields
    required: tuple[str, ...]
    answer: Schema
    streams: bool = False
    own: Mapping[str, Schema] = field(default_factory=dict)


BODIES: Mapping[str, Body] = {
    "/v1/chat/completions": Body(
        "Answer a conversation",
        fields.CHAT,
        ("model", "messages"),
        _reference("ChatCompletion"),
        True,
        CHAT_OWN,
    ),
    "/v1/completions": Body(
        "Continue a text",
        fields.COMPLETIONS,
        ("model", "prompt"),
        _reference("TextCompletion"),
        True,
        COMPLETIONS_OWN,
    ),
    "/v1/embeddings": Body(
        "Embeddings of texts", fields.EMBEDDINGS, ("model", "input"), _reference("EmbeddingList")
    ),
    "/tokenize": Body("Token ids of a text or a conversation", fields.TOKENIZE, (), _OBJECT),
    "/detokenize": Body("The text of token ids", fields.DETOKENIZE, ("tokens",), _OBJECT),
}
_GETS: Mapping[str, str] = {
    "/v1/models": "The models served here",
    "/v1/models/{id}": "One model",
    "/health": "Whether a request would be taken now",
    "/health/live": "Whether the process runs",
    "/health/ready": "The same as /health",
    "/metrics": "Metrics in the Prometheus text format",
    "/openapi.json": "This document",
}


async def openapi(serving: Serving, exchange: Exchange) -> None:
    await exchange.respond(200, _encoded(serving.model), type_=b"application/json")


@functools.lru_cache(maxsize=1)
def _encoded(model: ServedModel) -> bytes:
    return msgspec.json.encode(document(model))


def document(model: ServedModel) -> Schema:
    """The document as plain data, for a server that has this model."""
    answers = (ChatCompletion, TextCompletion, EmbeddingList)
    _, components = msgspec.json.schema_components(answers, ref_template=_REF)
    paths: dict[str, object] = {path: {"post": _post(body, model)} for path, body in BODIES.items()}
    paths |= {path: {"get": _get(path, summary)} for path, summary in _GETS.items()}
    return {
        "openapi": "3.1.0",
        "info": {"title": "tokenmill", "version": VERSION},
        "paths": paths,
        "components": {
            "schemas": {**components, "Error": _ERROR},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _post(body: Body, model: ServedModel) -> Schema:
    schema = body_schema(body.taken, body.required, model, body.own)
    content: Schema = {"application/json": {"schema": body.answer}}
    if body.streams:
        content["text/event-stream"] = {}
    return {
        "summary": body.summary,
        "requestBody": {"required": True, "content": {"application/json": {"schema": schema}}},
        "responses": {"200": {"description": "The answer", "content": content}, "default": _failure()},
    }


def _get(path: str, summary: str) -> Schema:
    content: Schema = {"text/plain" if path == "/metrics" else "application/json": {"schema": {}}}
    operation: Schema = {
        "summary": summary,
        "responses": {"200": {"description": "The answer", "content": content}, "default": _failure()},
    }
    if "{id}" in path:
        parameter = {"name": "id", "in": "path", "required": True, "schema": {"type": "string"}}
        operation["parameters"] = [parameter]
    return operation


def _failure() -> Schema:
    content = {"application/json": {"schema": _reference("Error")}}
    return {"description": "A refusal or a failure", "content": content}
