"""The models list, and the names a model answers to."""

from __future__ import annotations

from support.gateways import CHAT, chat, make_gateway
from support.scripted import MODEL


async def test_a_model_is_listed_and_found_under_each_of_its_names() -> None:
    gateway = make_gateway(aliases=("gpt-x", "a/b"))
    listed = (await gateway.get("/v1/models")).json()["data"]
    assert [entry["id"] for entry in listed] == [MODEL, "gpt-x", "a/b"]
    for name in ("gpt-x", "a/b", "a%2Fb"):
        found = (await gateway.get(f"/v1/models/{name}")).json()
        assert found["id"] == name.replace("%2F", "/")


async def test_answers_carry_the_first_name_whatever_name_was_asked() -> None:
    gateway = make_gateway(aliases=("gpt-x",))
    assert (await gateway.post(CHAT, {**chat(), "model": "gpt-x"})).json()["model"] == MODEL


async def test_an_unknown_name_is_told_the_known_ones() -> None:
    error = (await make_gateway(aliases=("gpt-x",)).get("/v1/models/other")).json()["error"]
    assert (error["code"], error["param"]) == ("model_not_found", "model")
    assert MODEL in error["message"] and "gpt-x" in error["message"]
