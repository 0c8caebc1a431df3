"""Headers and cookies that a model server forwards to the engine and back."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.replicas import Affinity
from rollyard.responses_api_models.upstream.upstream import RequestContext
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.request import HttpResponse, RawRequest
from rollyard.services.http.transport import LocalTransport
from tests.support.scripted_engine import COMPLETION, Engine, Step, engine, model_server

FORWARDED = {
    "cookie": "route=7; theme=dark",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=1",
    "baggage": "run=2",
    "x-session-id": "episode-1",
    "x-request-id": "r1",
    "x-data-parallel-rank": "3",
    "x-tenant": "blue",
}
WITHHELD = {
    "authorization": "Bearer for-the-model-server",
    "x-api-key": "for-the-model-server",
    "x-auth-token": "for-the-model-server",
    "x-rollyard-run": "run-1",
    "x-rollyard-to": "policy_model",
    "x-stainless-lang": "python",
    "x-forwarded-for": "10.0.0.1",
    "x-real-ip": "10.0.0.1",
    "accept": "text/plain",
    "accept-encoding": "gzip",
    "user-agent": "agent/1.0",
    "content-type": "application/vnd.example+json",
    "expect": "100-continue",
}
RETURNED = {
    "x-request-id": "r1",
    "x-ratelimit-remaining": "9",
    "openai-processing-ms": "12",
    "openai-version": "2020-10-01",
    "retry-after": "3",
}
NOT_RETURNED = {
    "x-rollyard-run": "another-run",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-api-key": "the engine's",
    "server": "uvicorn",
    "date": "Sat, 21 Nov 2026 19:25:09 GMT",
    "etag": "1",
    "keep-alive": "timeout=5",
}


async def call_through(
    path: str, headers: dict[str, str], answer_headers: Json | None = None, **settings: Any
) -> tuple[Engine, HttpResponse]:
    body = b'{"input": "hi"}' if "responses" in path else b'{"messages": [{"role": "user", "content": "hi"}]}'
    async with (
        engine(Step(COMPLETION, headers=answer_headers or {})) as fake,
        model_server(VllmModel, base_url=fake.url, api_key="the-engines-key", **settings) as server,
    ):
        local = LocalTransport(server.client.transport)
        local.mount("http://policy", server)
        answer = await local.send("POST", f"http://policy{path}", body, headers, 30.0)
    assert answer.status == 200, answer.body
    return fake, answer


PATHS = ["/v1/responses", "/v1/chat/completions"]


@pytest.mark.parametrize("path", PATHS)
async def test_headers_for_routers_and_traces_reach_the_engine_and_those_for_the_model_server_do_not(path: str) -> None:
    fake, _ = await call_through(f"{path}?api-version=2026-01-01&api_key=mine", {**FORWARDED, **WITHHELD})
    received = fake.headers[0]
    assert {name: received.get(name) for name in FORWARDED} == FORWARDED
    assert not [name for name, value in WITHHELD.items() if value in received.get(name, "")]
    assert received["authorization"] == "Bearer the-engines-key"
    assert fake.paths[0].partition("?")[2] == "api-version=2026-01-01"


def test_the_header_takes_precedence_over_the_body_for_the_episode() -> None:
    with_header = RawRequest("/v1/responses", {b"x-session-id": b"header"}, b"{}")
    assert RequestContext.of(with_header, "body").affinity == Affinity("header")
    assert RequestContext.of(RawRequest("/v1/responses", {}, b"{}"), "body").affinity == Affinity("body", binding=False)


COOKIE = "route=7; Path=/; HttpOnly; Expires=Sat, 21 Nov 2026 19:25:09 GMT"


@pytest.mark.parametrize("path", PATHS)
async def test_informative_headers_and_cookies_of_the_engine_are_returned_and_those_of_the_connection_are_not(
    path: str,
) -> None:
    _, answer = await call_through(path, {}, {**NOT_RETURNED, **RETURNED, "set-cookie": COOKIE})
    assert {name: answer.headers.get(name) for name in RETURNED} == RETURNED
    assert not [name for name, value in NOT_RETURNED.items() if answer.headers.get(name) == value]
    assert (answer.headers["x-rollyard-run"], answer.cookies) == ("run-1", (COOKIE,))


@pytest.mark.parametrize("value", ["na\u00efve", "\U0001f600", "\udcfc", "a\x01b"], ids=ascii)
def test_no_header_value_of_an_endpoint_causes_an_error(value: str) -> None:
    request_context = RequestContext({})
    request_context.record_response(HttpResponse(200, {"x-note": value, "x-fine": "1"}, b"", (f"a={value}",)))
    assert (b"x-fine", b"1") in request_context.answer_headers
    assert not any(b"\x01" in sent for _, sent in request_context.answer_headers)


async def test_configured_headers_override_the_callers() -> None:
    fake, _ = await call_through("/v1/responses", {"x-tenant": "red"}, default_headers={"X-Tenant": "blue"})
    assert fake.headers[0]["x-tenant"] == "blue"
