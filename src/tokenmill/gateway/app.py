"""The door: one ASGI application that wires routes, errors, request ids and the key together."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager

from starlette.exceptions import HTTPException
from starlette.routing import Route, Router
from starlette.types import Receive, Scope, Send

from tokenmill.core.bus import Bus
from tokenmill.core.clock import Clock, SystemClock
from tokenmill.core.errors import Draining, MethodNotAllowed, NotFound
from tokenmill.core.events import HttpAnswered
from tokenmill.gateway import chat, completions, embeddings, health, models_routes, openapi, tokenize
from tokenmill.gateway.auth import KeyCheck, check_local
from tokenmill.gateway.http import ClientGone, Exchange, public_error
from tokenmill.gateway.served import Limits, ServedModel, Serving
from tokenmill.observe.metrics import Metrics

__all__ = ["GatewayApp", "Limits", "ServedModel", "build_app"]

Handler = Callable[[Serving, Exchange], Awaitable[None]]

ROUTES: tuple[tuple[str, str, Handler], ...] = (
    ("POST", "/v1/chat/completions", chat.chat_completions),
    ("POST", "/v1/completions", completions.completions),
    ("POST", "/v1/embeddings", embeddings.embeddings),
    ("GET", "/v1/models", models_routes.list_models),
    ("GET", "/v1/models/{id:path}", models_routes.get_model),
    ("POST", "/tokenize", tokenize.tokenize),
    ("POST", "/detokenize", tokenize.detokenize),
    ("GET", "/health", health.ready),
    ("GET", "/health/live", health.live),
    ("GET", "/health/ready", health.ready),
    ("GET", "/metrics", health.metrics),
    ("GET", "/openapi.json", openapi.openapi),
)
# Routes are matched on the same decoded path that these sets are held against.
NO_KEY = frozenset({"/health", "/health/live", "/health/ready"})
OPEN_WHILE_DRAINING = NO_KEY | {"/metrics"}

_EXCHANGE = "tokenmill.exchange"


class _Endpoint:
    """A raw ASGI endpoint: Starlette calls it without request or response objects."""

    def __init__(self, pattern: str, handler: Handler, serving: Serving) -> None:
        self.label = pattern.replace(":path", "")
        self._handler = handler
        self._serving = serving

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        exchange: Exchange = scope[_EXCHANGE]
        exchange.route = self.label
        exchange.path_params = scope["path_params"]
        await self._handler(self._serving, exchange)


async def _no_route(scope: Scope, receive: Receive, send: Send) -> None:
    raise NotFound("there is nothing at this path; the API is under /v1")


class GatewayApp:
    """The ASGI application. Whatever happens inside, every request gets one answer and one event."""

    def __init__(self, serving: Serving, key_check: KeyCheck | None) -> None:
        self._serving = serving
        self._key_check = key_check
        self._router = Router(
            routes=[
                Route(pattern, _Endpoint(pattern, handler, serving), methods=[method])
                for method, pattern, handler in ROUTES
            ],
            redirect_slashes=False,
            default=_no_route,
            lifespan=self._lifespan,
        )

    def start_draining(self) -> None:
        """From now on new work is refused with 503; what runs goes on."""
        self._serving.draining = True

    def close(self) -> None:
        self._serving.tokenizer_thread.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        scope["app"] = self  # makes the router raise for a wrong method instead of answering itself
        if scope["type"] != "http":
            await self._router(scope, receive, send)
            return
        serving = self._serving
        exchange = Exchange(scope, receive, send, serving.clock, self._publish)
        scope[_EXCHANGE] = exchange
        try:
            await self._handle(exchange, scope, receive, send)
        except (ClientGone, asyncio.CancelledError) as error:
            exchange.status, exchange.error_code = 499, "client_gone"
            if isinstance(error, asyncio.CancelledError):
                raise
        finally:
            exchange.answered()

    async def _handle(self, exchange: Exchange, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            if exchange.path not in NO_KEY:
                self._check_caller(exchange)
            if self._serving.draining and exchange.path not in OPEN_WHILE_DRAINING:
                raise Draining("the server is stopping and takes no new requests")
            await self._router(scope, receive, send)
        except ClientGone:
            raise
        except HTTPException as error:
            allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
            refusal = MethodNotAllowed(f"{scope['method']} is not allowed here, only {allowed}")
            exchange.route = scope["endpoint"].label
            await exchange.fail(refusal, headers=[(b"allow", allowed.encode())])
        except Exception as error:
            await exchange.fail(public_error(error, exchange))

    def _check_caller(self, exchange: Exchange) -> None:
        if self._key_check is not None:
            self._key_check.check(exchange.headers(b"authorization"))
        else:
            check_local(exchange.headers(b"host"), exchange.headers(b"origin"))

    def _publish(self, exchange: Exchange) -> None:
        self._serving.bus.publish(
            HttpAnswered(
                at=self._serving.clock.monotonic(),
                model=self._serving.model.name,
                route=exchange.route,
                status=exchange.status,
                error_code=exchange.error_code,
                tenant="default",
                seconds=exchange.seconds(),
                request_id=exchange.request_id,
                first_byte_s=exchange.first_write_s,
                output_tokens=exchange.output_tokens,
                trace_id=trace.trace_id if (trace := exchange.trace()) else "",
            )
        )

    @asynccontextmanager
    async def _lifespan(self, app: object) -> AsyncIterator[None]:
        yield
        self.close()


def build_app(
    model: ServedModel,
    *,
    bus: Bus,
    metrics: Metrics,
    api_key: str | None,
    clock: Clock | None = None,
    max_waiting: int = 1024,
    limits: Limits | None = None,
) -> GatewayApp:
    """The door to one model. With an `api_key`, every route but the health checks asks for it.

    Without one, only requests that no foreign web page can have made are taken.
    """
    serving = Serving(
        model=model,
        bus=bus,
        metrics=metrics,
        clock=clock or SystemClock(),
        limits=limits or Limits(),
        max_waiting=max_waiting,
    )
    return GatewayApp(serving, KeyCheck(api_key) if api_key is not None else None)
