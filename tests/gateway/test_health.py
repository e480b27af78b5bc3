"""Health checks and the metrics page over the application."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import pytest
from prometheus_client import Metric
from prometheus_client.openmetrics import parser as openmetrics_parser
from prometheus_client.parser import text_string_to_metric_families as parse_text

from support.gateways import CHAT, Gateway, chat

parse_openmetrics: Callable[[str], Iterable[Metric]] = openmetrics_parser.text_string_to_metric_families


@pytest.mark.parametrize("path", ["/health", "/health/ready"])
async def test_readiness_follows_the_replica(gateway: Gateway, path: str) -> None:
    assert (await gateway.get(path)).json()["status"] == "ready"
    gateway.replica.ready, gateway.replica.reason = False, "the model is warming"
    response = await gateway.get(path)
    assert response.status_code == 503
    assert response.json()["error"]["code"] == "not_ready"
    assert "warming" in response.json()["error"]["message"]
    assert response.headers["retry-after"] == "1"


async def test_liveness_does_not(gateway: Gateway) -> None:
    gateway.replica.ready = False
    assert (await gateway.get("/health/live")).status_code == 200


async def test_while_draining_only_health_and_metrics_answer(gateway: Gateway) -> None:
    gateway.app.start_draining()
    assert (await gateway.get("/health/live")).status_code == 200
    assert (await gateway.get("/metrics")).status_code == 200
    for response in (await gateway.get("/health/ready"), await gateway.post(CHAT, chat())):
        assert response.status_code == 503
        assert response.json()["error"]["code"] == "draining"
    assert (await gateway.get("/v1/models")).json()["error"]["code"] == "draining"
    assert gateway.replica.requests == []


async def test_the_metrics_page_comes_in_both_formats(gateway: Gateway) -> None:
    await gateway.post(CHAT, chat())
    plain = await gateway.get("/metrics")
    assert plain.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    accept = "application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3"
    modern = await gateway.get("/metrics", accept=accept)
    assert modern.headers["content-type"] == "application/openmetrics-text; version=1.0.0; charset=utf-8"
    for families in (parse_text(plain.text), parse_openmetrics(modern.text)):
        samples = {sample.name: sample for family in families for sample in family.samples}
        assert samples["tokenmill_requests_total"].labels["route"] in {CHAT, "/metrics"}
        assert samples["vllm:num_requests_running"].value == 0


async def test_gauges_are_those_of_the_moment_of_reading(gateway: Gateway) -> None:
    gateway.replica.waiting = 7
    gateway.replica.ready = False
    text = (await gateway.get("/metrics")).text
    assert 'vllm:num_requests_waiting{engine="0",model_name="org/tiny"} 7.0' in text
    assert 'tokenmill_engine_ready{instance="0",model="org/tiny"} 0.0' in text
