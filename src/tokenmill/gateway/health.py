"""Health and metrics: what load balancers and Prometheus read."""

from __future__ import annotations

from tokenmill.core.errors import NotReady
from tokenmill.gateway.http import Exchange
from tokenmill.gateway.served import Serving


async def live(serving: Serving, exchange: Exchange) -> None:
    """200 as long as the event loop turns."""
    await exchange.respond_json({"status": "live"})


async def ready(serving: Serving, exchange: Exchange) -> None:
    """200 when a request would be taken now, else 503 with the reason."""
    stats = serving.model.replica.stats()
    if serving.draining:
        raise NotReady("the server is stopping and takes no new requests", code="draining")
    if not stats.ready:
        raise NotReady(f"the model is not ready: {stats.reason or 'it is still loading'}")
    await exchange.respond_json(
        {"status": "ready", "model": serving.model.name, "running": stats.running, "waiting": stats.waiting}
    )


async def metrics(serving: Serving, exchange: Exchange) -> None:
    """The metrics page, in OpenMetrics if asked for, else in the Prometheus text format."""
    serving.metrics.set_gauges(serving.model.replica.stats())
    accept = (exchange.header(b"accept") or b"").decode("latin-1")
    body, content_type = serving.metrics.render(accept)
    await exchange.respond(200, body, type_=content_type.encode())
