"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from tokenmill.gateway.http import Exchange
from tokenmill.gateway.sampling import model_not_found
from tokenmill.gateway.served import ServedModel, Serving


async def list_models(serving: Serving, exchange: Exchange) -> None:
    await exchange.respond_json({"object": "list", "data": [_entry(serving.model)]})


async def get_model(serving: Serving, exchange: Exchange) -> None:
    """The id may hold slashes, raw or as %2F: the path has been decoded once, and only once."""
    name = exchange.path_params["id"]
    if name != serving.model.name:
        raise model_not_found(name, serving.model)
    await exchange.respond_json(_entry(serving.model))


def _entry(model: ServedModel) -> dict[str, object]:
    return {
        "id": model.name,
        "object": "model",
        "created": model.created,
        "owned_by": "tokenmill",
        "max_model_len": model.max_model_len,
    }
