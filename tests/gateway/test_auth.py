"""The key: asked for everywhere but at the health checks."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from support.gateways import CHAT, COMPLETIONS, Gateway, chat, make_gateway

KEY = "correct-horse-battery"


@pytest.fixture
def locked() -> Iterator[Gateway]:
    made = make_gateway(api_key=KEY)
    yield made
    made.app.close()


@pytest.mark.parametrize(
    "path",
    [
        CHAT,
        COMPLETIONS,
        "/v1/models",
        "/v1/models/org/tiny",
        "/tokenize",
        "/detokenize",
        "/metrics",
        "/nowhere",
        "/health/",
        "/health/other",
        "/HEALTH",
        "//health",
    ],
)
@pytest.mark.parametrize("method", ["GET", "POST"])
async def test_without_a_key_nothing_else_is_told(locked: Gateway, path: str, method: str) -> None:
    async with locked.client() as client:
        response = await client.request(method, path)
    assert response.status_code == 401
    assert response.json()["error"]["code"] == "invalid_api_key"
    assert response.headers["www-authenticate"] == "Bearer"
    assert response.headers["x-should-retry"] == "false"


@pytest.mark.parametrize("path", ["/health", "/health/live", "/health/ready"])
async def test_health_needs_no_key(locked: Gateway, path: str) -> None:
    assert (await locked.get(path)).status_code == 200


@pytest.mark.parametrize("header", [f"Bearer {KEY}", f"bearer {KEY}", f"Bearer  {KEY} "])
async def test_the_key_opens(locked: Gateway, header: str) -> None:
    response = await locked.post(CHAT, chat(), authorization=header)
    assert response.status_code == 200


@pytest.mark.parametrize(
    "header",
    ["", "Bearer", "Bearer ", KEY, f"Basic {KEY}", f"Bearer {KEY}x", f"Bearer {KEY[:-1]}", "Bearer \xff"],
)
async def test_anything_else_does_not(locked: Gateway, header: str) -> None:
    async with locked.client() as client:
        headers = [(b"authorization", header.encode("latin-1"))]
        response = await client.get("/v1/models", headers=headers)
    assert response.status_code == 401
    assert KEY not in response.text


async def test_two_keys_are_none(locked: Gateway) -> None:
    async with locked.client() as client:
        headers = [("authorization", f"Bearer {KEY}"), ("authorization", "Bearer other")]
        assert (await client.get("/v1/models", headers=headers)).status_code == 401


async def test_the_host_header_changes_nothing(locked: Gateway) -> None:
    for host in ("x/health", "x?/health", "health"):
        assert (await locked.get("/v1/models", host=host)).status_code == 401


async def test_without_a_configured_key_everything_is_open(gateway: Gateway) -> None:
    assert (await gateway.get("/v1/models")).status_code == 200
    assert (await gateway.get("/v1/models", authorization="Bearer whatever")).status_code == 200
