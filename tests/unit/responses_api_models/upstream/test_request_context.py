"""What goes through a model server beside the bodies: headers and cookies, to the engine and back."""

from __future__ import annotations

from typing import Any

import pytest

from rollyard.responses_api_models.upstream.replicas import Affinity
from rollyard.responses_api_models.upstream.request_context import RequestContext
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.request import RawRequest
from rollyard.services.http.transport import HttpResponse, LocalTransport
from tests.support.scripted_engine import COMPLETION, Engine, Step, engine, model_server

THROUGH = {
    "cookie": "route=7; world=3",
    "traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    "tracestate": "a=1",
    "baggage": "run=2",
    "x-session-id": "episode-1",
    "x-request-id": "r1",
    "x-data-parallel-rank": "3",
    "x-tenant": "blue",
}
STAYING = {
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
    "user-agent": "somebody",
    "content-type": "application/vnd.somebody+json",
    "expect": "100-continue",
}
BACK = {
    "x-request-id": "r1",
    "x-ratelimit-remaining": "9",
    "openai-processing-ms": "12",
    "openai-version": "2020-10-01",
    "retry-after": "3",
}
KEPT = {
    "x-rollyard-run": "somebody-elses",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "x-api-key": "the engine's",
    "server": "uvicorn",
    "date": "Sat, 21 Nov 2026 19:25:09 GMT",
    "etag": "1",
    "keep-alive": "timeout=5",
}


async def passed(
    path: str, headers: dict[str, str], step: Step | None = None, **settings: Any
) -> tuple[Engine, HttpResponse]:
    """The engine that was asked with these headers, and the answer that came back."""
    body = b'{"input": "hi"}' if path.endswith("responses") else b'{"messages": [{"role": "user", "content": "hi"}]}'
    async with (
        engine(step or Step()) as fake,
        model_server(VllmModel, base_url=fake.url, api_key="the-engines-key", **settings) as server,
    ):
        local = LocalTransport(server.client.transport)
        local.mount("http://policy", server)
        answer = await local.send("POST", f"http://policy{path}", body, headers, 30.0)
    assert answer.status == 200, answer.body
    return fake, answer


PATHS = ["/v1/responses", "/v1/chat/completions"]


@pytest.mark.parametrize("path", PATHS)
async def test_what_routers_and_traces_need_reaches_the_engine_unchanged(path: str) -> None:
    fake, _ = await passed(path, THROUGH)
    assert {name: fake.headers[0].get(name) for name in THROUGH} == THROUGH


@pytest.mark.parametrize("path", PATHS)
async def test_what_is_meant_for_this_server_alone_does_not_reach_the_engine(path: str) -> None:
    fake, _ = await passed(path, STAYING)
    told = fake.headers[0]
    assert not [name for name, value in STAYING.items() if value in told.get(name, "")]
    assert told["authorization"] == "Bearer the-engines-key"


async def test_names_of_headers_are_read_in_any_case() -> None:
    call = RawRequest(
        "/v1/responses", [(b"Cookie", b"a=1"), (b"X-Session-Id", b"e"), (b"Authorization", b"secret")], b"{}"
    )
    request_context = RequestContext.of(call)
    assert (request_context.headers, request_context.affinity) == (
        {"cookie": "a=1", "x-session-id": "e"},
        Affinity("e"),
    )


def test_the_header_names_the_episode_before_the_body_does() -> None:
    with_header = RawRequest("/v1/responses", [(b"x-session-id", b"header")], b"{}")
    assert RequestContext.of(with_header, "body").affinity == Affinity("header")
    assert RequestContext.of(RawRequest("/v1/responses", [], b"{}"), "body").affinity == Affinity("body", binding=False)


@pytest.mark.parametrize("path", PATHS)
async def test_what_the_engine_says_beside_its_answer_comes_back(path: str) -> None:
    _, answer = await passed(path, {}, Step(COMPLETION, headers=BACK))
    assert {name: answer.headers.get(name) for name in BACK} == BACK


@pytest.mark.parametrize("path", PATHS)
async def test_what_belongs_to_the_engines_own_connection_does_not_come_back(path: str) -> None:
    _, answer = await passed(path, {}, Step(COMPLETION, headers=KEPT))
    assert not [name for name, value in KEPT.items() if answer.headers.get(name) == value]
    assert answer.headers["x-rollyard-run"] == "run-1"


@pytest.mark.parametrize("path", PATHS)
async def test_a_cookie_that_a_load_balancer_sets_comes_back_whole(path: str) -> None:
    cookie = "route=7; Path=/; HttpOnly; Expires=Sat, 21 Nov 2026 19:25:09 GMT"
    _, answer = await passed(path, {}, Step(COMPLETION, headers={"set-cookie": cookie}))
    assert answer.cookies == (cookie,)


@pytest.mark.parametrize("value", ["na\u00efve", "\U0001f600", "\udcfc", "a\x01b"], ids=ascii)
def test_no_header_of_an_endpoint_is_an_error(value: str) -> None:
    request_context = RequestContext({})
    request_context.record_response(HttpResponse(200, {"x-note": value, "x-fine": "1"}, b"", (f"a={value}",)))
    assert (b"x-fine", b"1") in request_context.answer_headers
    assert not any(b"\x01" in sent for _, sent in request_context.answer_headers)


@pytest.mark.parametrize("path", PATHS)
async def test_a_header_that_is_not_ascii_goes_through(path: str) -> None:
    _, answer = await passed(path, {}, Step(COMPLETION, headers={"x-note": "na\u00efve \U0001f600"}))
    assert answer.headers["x-note"].encode("latin-1").decode() == "na\u00efve \U0001f600"


async def test_the_settings_own_headers_win_over_a_callers() -> None:
    fake, _ = await passed("/v1/responses", {"x-tenant": "red"}, default_headers={"X-Tenant": "blue"})
    assert fake.headers[0]["x-tenant"] == "blue"
