"""GET /v1/models and /v1/models/{id}."""

from __future__ import annotations

from tokenmill.gateway.http import Exchange
from tokenmill.gateway.sampling import model_not_found
from tokenmill.gateway.served import ServedModel, Serving


async def list_models(serving: Serving, exchange: Exchange) -> None:
    entries = [_entry(serving.model, name) for name in serving.model.names]
    await exchange.respond_json({"object": "list", "data": entries})


async def get_model(serving: Serving, exchange: Exchange) -> None:
    """The id may hold slashes, raw or as %2F: the path has been decoded once, and only once."""
    name = exchange.path_params["id"]
    if name not in serving.model.names:
        raise model_not_found(name, serving.model)
    await exchange.respond_json(_entry(serving.model, name))


def _entry(model: ServedModel, name: str) -> dict[str, object]:
    return {
        "id": name,
        "object": "model",
        "created": model.created,
        "owned_by": "tokenmill",
        "max_model_len": model.max_model_len,
    }
