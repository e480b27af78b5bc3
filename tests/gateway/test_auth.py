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


FOREIGN_HOSTS = ["evil.example", "evil.example:8000", "localhost.evil.example", "127.0.0.1.evil.example"]
FOREIGN_HOSTS += ["192.168.1.5:8000", "10.0.0.1", "[::2]:8000", "user@localhost", "localhost/x", ""]


@pytest.mark.parametrize("host", FOREIGN_HOSTS)
@pytest.mark.parametrize("path", [CHAT, "/v1/models", "/tokenize", "/metrics", "/nowhere"])
async def test_without_a_key_a_foreign_host_is_refused(gateway: Gateway, host: str, path: str) -> None:
    response = await gateway.post(path, chat(), host=host)
    assert response.status_code == 403
    assert list(response.json()["error"]) == ["message", "type", "param", "code"]
    assert response.json()["error"]["code"] == "foreign_host"
    assert gateway.replica.requests == []


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:8000", "127.0.0.1:1", "127.8.9.1", "[::1]", "[::1]:8000"]
)
async def test_loopback_names_are_the_servers_own(gateway: Gateway, host: str) -> None:
    for origin in (f"http://{host}", f"https://{host}"):
        assert (await gateway.post(CHAT, chat(), host=host, origin=origin)).status_code == 200


async def test_a_second_host_does_not_hide_behind_the_first(gateway: Gateway) -> None:
    async with gateway.client() as client:
        headers = [("host", "localhost"), ("host", "evil.example")]
        assert (await client.get("/v1/models", headers=headers)).status_code == 403


@pytest.mark.parametrize(
    "origin",
    ["https://evil.example", "null", "", "http://localhost.evil.example", "file://", "http://localhost@evil"],
)
async def test_without_a_key_a_foreign_page_is_refused(gateway: Gateway, origin: str) -> None:
    response = await gateway.post(CHAT, chat(), origin=origin)
    assert (response.status_code, response.json()["error"]["code"]) == (403, "foreign_origin")
    assert gateway.replica.requests == []


async def test_health_is_open_under_any_name(gateway: Gateway) -> None:
    assert (await gateway.get("/health", host="pod.internal", origin="null")).status_code == 200


async def test_with_a_key_any_name_will_do(locked: Gateway) -> None:
    headers = {"authorization": f"Bearer {KEY}", "host": "api.example", "origin": "https://ui.example"}
    assert (await locked.post(CHAT, chat(), **headers)).status_code == 200
