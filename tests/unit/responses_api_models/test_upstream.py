"""Calls to engines: retries end, failures name their cause, and the key is never shown."""

from __future__ import annotations

import asyncio
import contextlib
import email.utils
import itertools
import logging
import time
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream import replicas as module
from rollyard.responses_api_models.upstream.replicas import COOL_DOWNS, Affinity, Endpoint, Replicas
from rollyard.responses_api_models.upstream.response_parsing import json_object, retry_after_s
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.responses_api_models.upstream.upstream import RequestContext, Upstream, _forwarded
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.backoff import Backoff
from rollyard.services.http.request import HttpResponse, RawRequest
from rollyard.services.http.transport import HttpTransport, LocalTransport, Transport
from rollyard.services.server.app import Server
from tests.support.fixtures import http_transport, unused_url
from tests.support.scripted_engine import COMPLETION, Engine, Step, engine, model_server
from tests.support.token_clients import CALL_TURN, TEXT_TURN, EpisodeClient, open_episode, tool_output, user_message
from tests.support.token_engine import TokenEngine
from tests.support.waiting import deadline_s
from tests.unit.responses_api_models.chat_engine.changed_engine import Changed, refuse

KEY = "sk-very-secret-key"


def make_upstream(transport: Transport, urls: str | list[str], **options: Any) -> Upstream:
    settings = EndpointSettings(
        base_url=urls, model="engine-model", **{"api_key": KEY, "retry_pause_s": 0.01, **options}
    )
    return Upstream(Replicas(settings.urls), settings, settings.api_key, transport)


async def post(urls: str | list[str], path: str = "/chat/completions", **options: Any) -> Json:
    async with http_transport() as transport:
        return await make_upstream(transport, urls, **options).post(path, b"{}", json_object)


async def failure_of(urls: str | list[str], path: str = "/chat/completions", **options: Any) -> Failure:
    with pytest.raises(Failure) as caught:
        await post(urls, path, **options)
    return caught.value


async def test_a_temporary_fault_is_retried() -> None:
    bodies = [Step(b'{"choices": ['), Step(b"<html>busy</html>"), Step(COMPLETION, 206), Step(cut=True)]
    for step in [*bodies, *(Step(status=status) for status in (500, 503, 429, 408, 409, 425))]:
        async with engine(step, COMPLETION) as fake:
            assert await post(fake.url) == COMPLETION
        assert len(fake.requests) == 2, step


@pytest.mark.parametrize("status", [400, 401, 403, 404, 413, 418, 422])
async def test_a_refusal_by_an_endpoint_that_always_refuses_is_permanent(status: int) -> None:
    async with engine(Step({"error": {"message": "no such thing"}}, status)) as fake:
        failure = await failure_of(fake.url)
    problem = failure.problem
    assert (failure.kind, problem.status, problem.upstream_status) == (FailureKind.UPSTREAM_REFUSED, status, status)
    assert failure.terminal
    assert "no such thing" in problem.detail
    assert fake.url in problem.detail
    assert len(fake.requests) == (3 if status in (401, 413, 418) else 1)


@pytest.mark.parametrize("status", [301, 304, 400, 401, 403, 404, 413, 418, 422, 451])
async def test_a_stray_refusal_among_good_answers_is_retried(status: int) -> None:
    async with engine(COMPLETION, Step(b"", status), COMPLETION) as fake, http_transport() as transport:
        upstream = make_upstream(transport, fake.url)
        for _ in range(2):
            assert await upstream.post("/chat/completions", b"{}", json_object) == COMPLETION
    assert len(fake.requests) == 3


@pytest.mark.parametrize(
    ("status", "suffix", "hint"),
    [(401, "/v1", "policy_api_key"), (404, "/v1", "policy_model_name"), (404, "", "should end in /v1")],
)
async def test_a_refusal_says_what_to_check(status: int, suffix: str, hint: str) -> None:
    async with engine(Step({"message": "x"}, status)) as fake:
        assert hint in (await failure_of(fake.url.removesuffix("/v1") + suffix)).problem.detail


async def test_a_persistent_fault_ends_with_its_own_kind() -> None:
    for step, kind, upstream_status in [
        (Step({"error": "slow down"}, 429), FailureKind.RATE_LIMITED, 429),
        (Step(b"boom", 500), FailureKind.UPSTREAM_ERROR, 500),
        (Step(b"[1]"), FailureKind.MALFORMED_ANSWER, None),
        (Step(COMPLETION, 206), FailureKind.MALFORMED_ANSWER, 206),
        (Step(cut=True), FailureKind.CONNECTION_LOST, None),
    ]:
        async with engine(step) as fake:
            failure = await failure_of(fake.url, max_attempts=3)
        assert (failure.kind, failure.problem.upstream_status) == (kind, upstream_status)
        assert "tried 3 times" in failure.problem.detail
        assert len(fake.requests) == 3


async def test_a_dead_address_is_unreachable() -> None:
    assert (await failure_of(unused_url() + "/v1")).kind is FailureKind.UNREACHABLE


async def test_many_failures_are_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    async with engine(Step(status=500)) as fake, http_transport() as transport:
        upstream = make_upstream(transport, fake.url, max_attempts=1)
        calls = [upstream.post("/x", b"{}", json_object) for _ in range(50)]
        await asyncio.gather(*calls, return_exceptions=True)
    assert len([record for record in caplog.records if "attempt 1" in record.message]) == 1


async def test_a_timeout_is_retried_while_another_attempt_fits_and_is_wanted() -> None:
    async with engine(Step(delay_s=30), COMPLETION) as fake:
        assert await post(fake.url, request_timeout_s=2, total_timeout_s=60) == COMPLETION
    too_short: list[Json] = [{"request_timeout_s": 1.0, "total_timeout_s": 1.5}, {"request_timeout_s": 0.5}]
    for settings, retry_timeouts in zip(too_short, (True, False), strict=True):
        async with engine(Step(delay_s=deadline_s())) as fake:
            failure = await failure_of(fake.url, retry_timeouts=retry_timeouts, **settings)
        assert (failure.kind, len(fake.requests)) == (FailureKind.TIMEOUT, 1)


async def test_the_total_timeout_bounds_all_attempts_together() -> None:
    async with engine(Step(status=500)) as fake:
        await failure_of(fake.url, total_timeout_s=2, max_attempts=10_000, retry_pause_s=0.02)
    assert 1 < len(fake.requests) < 10_000


async def test_the_time_of_retry_after_is_waited() -> None:
    started = time.monotonic()
    async with engine(Step(status=429, headers={"retry-after": "0.4"}), COMPLETION) as fake:
        await post(fake.url)
    assert time.monotonic() - started >= 0.4


async def test_a_retry_after_beyond_the_total_timeout_fails_immediately() -> None:
    async with engine(Step(status=503, headers={"retry-after": "50"})) as fake, asyncio.timeout(49):
        await failure_of(fake.url, total_timeout_s=20)
    assert len(fake.requests) == 1


def test_retry_after_is_read_as_seconds_or_date_and_capped() -> None:
    date = email.utils.formatdate(time.time() + 30, usegmt=True)
    assert 0 < retry_after_s(date) <= 30
    assert [retry_after_s(text) for text in ("7", "1e9", "-3", "soon", "nan", None)] == [7, 60, 0, 0, 0, 0]
    assert [retry_after_s(text) for text in ("inf", "-inf", "Fri, 31 Dec 9999 23:59:59 GMT")] == [60, 0, 60]


@pytest.mark.parametrize("asked", ["inf", "Fri, 31 Dec 9999 23:59:59 GMT"])
async def test_who_asked_for_a_long_pause_is_named_and_callers_are_asked_for_60_s(
    asked: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with engine(Step({"error": "slow down"}, 429, {"retry-after": asked})) as fake:
        failure = await failure_of(fake.url, total_timeout_s=20)
    for text in (failure.problem.detail, caplog.text):
        assert fake.url in text
        assert f"Retry-After '{asked[:20]}" in text
        assert "60 s" in text
    assert (failure.problem.model_extra or {})["retry_after"] == "60"


@pytest.mark.parametrize("status", [301, 400, 401, 403, 404, 422])
async def test_an_endpoint_that_refuses_what_another_accepts_is_avoided(
    status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COOL_DOWNS", Backoff(first_pause_s=deadline_s(), longest_pause_s=deadline_s()))
    async with engine(Step(b"", status)) as bad, engine() as good, http_transport() as transport:
        upstream = make_upstream(transport, [bad.url, good.url])
        for _ in range(20):
            assert await upstream.post("/x", b"{}", json_object) == COMPLETION
    assert len(bad.requests) == 1


async def test_a_refusal_by_all_endpoints_is_final() -> None:
    refusal = Step({"error": {"message": "no such thing"}}, 400)
    async with engine(refusal) as one, engine(refusal) as two:
        failure = await failure_of([one.url, two.url], max_attempts=10)
    assert (failure.kind, failure.terminal) == (FailureKind.UPSTREAM_REFUSED, True)
    assert (len(one.requests), len(two.requests)) == (1, 1)


@pytest.mark.parametrize(
    "step",
    [
        Step({"error": {"message": f"{'x' * 290} Incorrect API key provided: {KEY}"}}, 401),
        Step(f'["{"x" * 285}", "{KEY}"]'.encode()),
        Step(f"<p>{KEY}</p>".encode(), 500),
        Step({"error": {"message": "Incorrect key: azure-key-of-this-test"}}, 401),
    ],
    ids=["401", "garbage", "500", "a header"],
)
async def test_the_key_is_never_shown(step: Step, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    async with engine(step) as fake, http_transport() as transport:
        upstream = make_upstream(transport, fake.url, default_headers={"api-key": "azure-key-of-this-test"})
        with pytest.raises(Failure) as caught:
            await upstream.post("/x", b"{}", json_object)
    shown = caplog.text + repr(upstream) + str(caught.value) + caught.value.problem.model_dump_json()
    assert "sk-very" not in shown and "azure-key" not in shown


def test_an_unusable_address_is_refused_at_startup() -> None:
    with_password = "http://user:pass@host/v1", "http://host/v1?key=pass"
    urls: list[Any] = ["127.0.0.1:8000/v1", "", "ftp://host/v1", "http://[::1", [], *with_password]
    for url in urls:
        with pytest.raises(OperatorError, match="base_url") as caught:
            EndpointSettings(base_url=url, model="m")
        assert "pass" not in str(caught.value)


def test_a_key_that_cannot_be_a_header_value_is_refused_without_being_shown() -> None:
    with pytest.raises(OperatorError, match="api_key") as caught:
        make_upstream(HttpTransport(), "http://host/v1", api_key="sk-a\nb")
    assert "sk-a" not in str(caught.value)


TOKEN_ENDPOINTS = ("/render", "/inference/v1/generate", "/derender")
FALLBACKS: list[tuple[tuple[str, ...], str]] = [
    *[((path,), "completions") for path in TOKEN_ENDPOINTS],
    ((*TOKEN_ENDPOINTS, "/tokenize"), "chat"),
    ((*TOKEN_ENDPOINTS, "/tokenize", "/v1/completions"), "chat"),
]


@pytest.mark.parametrize(("paths", "backend"), FALLBACKS)
async def test_an_engine_without_some_endpoints_gets_its_turns_through_another_backend(
    paths: tuple[str, ...], backend: str
) -> None:
    async with open_episode(Changed([CALL_TURN, TEXT_TURN], paths, refuse())) as client:
        one = await client.ask()
        two = await client.ask(tool_output(one))
        three = await client.ask(user_message("on"))
    traces = [item["token_trace"] for item in (one, two, three)]
    assert [trace["way"] for trace in traces] == ["chat", backend, backend]
    assert {trace["sampling"]["version_of"] for trace in traces} == {"turn"}


@pytest.mark.parametrize("path", TOKEN_ENDPOINTS)
async def test_a_required_backend_that_the_engine_lacks_is_refused_by_name(path: str) -> None:
    async with open_episode(Changed([TEXT_TURN], path, refuse()), token_in="generate") as client:
        status, problem = await client.send("/v1/responses", {"input": "go"})
    assert (status, problem["type"]) == (400, "urn:rollyard:upstream_refused")
    assert "start vLLM with --enable-scale-out" in problem["detail"]


ONE, TWO, THREE = (f"http://engine{number}/v1" for number in (1, 2, 3))


A, B, C = Affinity("a"), Affinity("b"), Affinity("c")
CACHE = Affinity("a", binding=False)
PATH = "/chat/completions"


async def chosen_url(pool: Replicas, affinity: Affinity | None = None) -> str:
    return (await pool.choose(affinity)).url


async def first_call(pool: Replicas, affinity: Affinity) -> Endpoint:
    endpoint = await pool.choose(affinity)
    pool.answered(endpoint, affinity, PATH)
    return endpoint


def endpoint_of(pool: Replicas, url: str) -> Endpoint:
    return pool._endpoints[url]


def fail(pool: Replicas, url: str) -> None:
    endpoint_of(pool, url).fail(PATH, 0.0)


async def session_lost(pool: Replicas, affinity: Affinity) -> str:
    with pytest.raises(Failure) as caught:
        await pool.choose(affinity)
    assert caught.value.kind is FailureKind.SESSION_LOST
    assert not caught.value.terminal
    return caught.value.problem.detail


async def test_a_first_call_goes_to_the_least_busy_endpoint_in_turn_among_equals() -> None:
    pool = Replicas([ONE, TWO, THREE])
    one, two = endpoint_of(pool, ONE), endpoint_of(pool, TWO)
    with one.busy(), one.busy(), two.busy():
        assert await chosen_url(pool) == THREE
    assert len({await chosen_url(pool) for _ in range(3)}) == 3


async def test_a_failed_endpoint_is_chosen_last_or_if_there_is_no_other() -> None:
    pool = Replicas([ONE, TWO])
    fail(pool, ONE)
    assert [await chosen_url(pool) for _ in range(3)] == [TWO, TWO, TWO]
    pool.remove(TWO)
    assert await chosen_url(pool) == ONE


async def test_a_success_on_the_path_that_failed_ends_a_cool_down_and_one_call_probes_after_it() -> None:
    pool = Replicas([ONE, TWO])
    one = endpoint_of(pool, ONE)
    fail(pool, ONE)
    one.succeed("/tokenize")
    assert {await chosen_url(pool) for _ in range(4)} == {TWO}
    one.cooling_until = 0.0
    assert await chosen_url(pool) == ONE
    with one.busy():
        assert {await chosen_url(pool) for _ in range(4)} == {TWO}
    one.succeed(PATH)
    assert {await chosen_url(pool) for _ in range(4)} == {ONE, TWO}


def test_each_failed_probe_doubles_the_cool_down_up_to_a_limit() -> None:
    endpoint = Endpoint(ONE)
    durations = []
    for _ in range(20):
        endpoint.cooling_until = 0.0
        endpoint.fail(PATH, endpoint.cooling_since)
        durations.append(round(endpoint.cooling_until - endpoint.cooling_since))
    assert durations[:4] == [1, 2, 4, 8]
    assert durations[-1] == COOL_DOWNS.longest_pause_s


async def test_a_new_engine_at_the_same_address_does_not_continue_its_episodes() -> None:
    pool = Replicas([ONE])
    await first_call(pool, A)
    pool.remove(ONE)
    pool.add(ONE)
    await session_lost(pool, A)
    assert await chosen_url(pool, A) == ONE


async def test_a_call_keeps_waiting_when_a_new_engine_is_removed_again() -> None:
    pool = Replicas(wait_s=30)
    call = asyncio.create_task(chosen_url(pool, A))
    await asyncio.sleep(0)
    pool.add(ONE)
    pool.remove(ONE)
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not call.done()
    pool.add(TWO)
    assert await call == TWO


async def test_the_wait_ends_with_the_reason_why_no_engine_is_up() -> None:
    pool = Replicas(wait_s=0.01, why_none=lambda: "loading the model")
    with pytest.raises(Failure, match="loading the model") as caught:
        await pool.choose(A)
    assert caught.value.kind is FailureKind.UNREACHABLE


async def test_neither_a_preference_nor_an_episode_without_an_answer_is_lost_with_its_endpoint() -> None:
    for affinity in (CACHE, A):
        pool = Replicas([ONE, TWO])
        first = await (first_call(pool, affinity) if affinity is CACHE else pool.choose(affinity))
        assert not pool.binds(affinity, first)
        pool.remove(first.url)
        assert await chosen_url(pool, affinity) != first.url


async def test_calls_with_one_shared_preference_are_spread_over_the_endpoints() -> None:
    pool = Replicas([ONE, TWO, THREE])
    with contextlib.ExitStack() as calls:
        for _ in range(60):
            calls.enter_context((await first_call(pool, CACHE)).busy())
        busy = pool.in_flight
    assert max(busy.values()) <= 2 * min(busy.values()) + module.SLACK + 1


@pytest.mark.parametrize(
    ("reported", "accepted"),
    [
        (["m", "other", "m"], [True, False, True]),
        (["alias"] * 4, [False, True, True, True]),  # a gateway renames the model
        ([ONE, TWO, THREE, ONE, TWO], [False, False, True, True, True]),  # each endpoint has its own name for it
        *(([name], [True]) for name in ("org/m", "M", "m-2026-08-07", "m:free", "m@1")),
    ],
)
def test_an_endpoint_that_serves_another_model_than_the_others_is_detected(
    reported: list[str], accepted: list[bool]
) -> None:
    pool = Replicas([ONE, TWO, THREE])
    endpoints = itertools.cycle(endpoint_of(pool, url) for url in (ONE, TWO, THREE))
    assert [pool.answers_as(next(endpoints), name, "m") for name in reported] == accepted


async def test_a_response_of_another_model_is_replaced_by_one_of_another_endpoint() -> None:
    async with engine({**COMPLETION, "model": "another"}) as bad, engine() as good, http_transport() as transport:
        upstream = make_upstream(transport, [bad.url, good.url])
        assert [await upstream.post("/x", b"{}", json_object) for _ in range(5)] == [COMPLETION] * 5
    assert bad.requests


async def test_metrics_report_in_flight_calls_and_failures_of_each_engine_without_passwords() -> None:
    pool = Replicas(["http://me:secret@engine1:8000/v1", TWO])
    fail(pool, TWO)
    with endpoint_of(pool, "http://me:secret@engine1:8000/v1").busy():
        found = {(s.name, s.labels["engine"]): s.value for metric in pool.collect() for s in metric.samples}
    assert found == {
        ("rollyard_engine_in_flight", "engine1:8000/v1"): 1,
        ("rollyard_engine_in_flight", "engine2/v1"): 0,
        ("rollyard_engine_shunned", "engine1:8000/v1"): 0,
        ("rollyard_engine_shunned", "engine2/v1"): 1,
    }


SETTINGS: Json = {"logprobs_mode": "processed_logprobs"}


def session_header(episode: str) -> Json:
    return {"x-session-id": episode}


def two_engines() -> tuple[TokenEngine, TokenEngine]:
    return TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN])


async def first_response(client: EpisodeClient, episode: str) -> Json:
    status, response = await client.send("/v1/responses", {"input": "go"}, session_header(episode))
    assert status == 200, response
    return response


async def later_call(client: EpisodeClient, episode: str) -> tuple[int, Json]:
    return await client.send(
        "/v1/responses", {"input": [user_message("go"), user_message("on")]}, session_header(episode)
    )


async def test_all_requests_of_an_episode_go_to_the_engine_of_its_first_call() -> None:
    one, other = two_engines()
    async with open_episode(one, other, **SETTINGS) as client:
        item = await client.ask(headers=session_header("a"))
        for number in range(2):
            await first_response(client, f"between{number}")
            item = await client.ask(tool_output(item), headers=session_header("a"))
    counts = [[headers["x-session-id"] for headers in engine.headers].count("a") for engine in (one, other)]
    assert sorted(map(bool, counts)) == [False, True]
    assert max(counts) >= 3 and one.requests and other.requests


async def test_an_episode_whose_engine_died_is_lost_and_its_next_attempt_uses_another_engine() -> None:
    one, other = two_engines()
    async with open_episode(one, other, **SETTINGS) as client:
        await first_response(client, "a")
        dead, alive = (one, other) if one.requests else (other, one)
        dead.dead = True
        status, problem = await later_call(client, "a")
        assert (status, problem["type"]) == (410, "urn:rollyard:session_lost")
        assert not alive.requests
        await first_response(client, "a")
        status, _ = await later_call(client, "a")
    assert (status, alive.turns) == (200, 2)


async def test_a_single_dead_engine_is_unreachable_until_it_returns() -> None:
    """There is no other engine: once it is back, the episode continues."""
    engine = TokenEngine([TEXT_TURN])
    async with open_episode(engine, max_attempts=2, **SETTINGS) as client:
        await first_response(client, "a")
        engine.dead = True
        status, problem = await later_call(client, "a")
        assert (status, problem["type"]) == (503, "urn:rollyard:unreachable")
        engine.dead = False
        assert (await later_call(client, "a"))[0] == 200


async def test_concurrent_first_calls_of_an_episode_avoid_a_dead_engine_together() -> None:
    one, other = two_engines()
    one.dead = True
    async with open_episode(one, other, **SETTINGS) as client:
        for number in range(4):
            answers = await asyncio.gather(*(first_response(client, f"episode{number}") for _ in range(3)))
            assert len(answers) == 3
    assert other.requests


async def test_an_episode_whose_engine_keeps_failing_is_lost_and_restarts_on_another() -> None:
    async with engine(COMPLETION, Step(status=500)) as bad, engine() as good:
        settings = {"base_url": [bad.url, good.url], "max_attempts": 9}
        async with model_server(VllmModel, **settings) as server:
            first = await _status_of_call(server, "a")
            later = [await _status_of_call(server, "a") for _ in range(2)]
    assert (first, later) == (200, [410, 200])
    assert len(bad.requests) == 1 + 3


async def _status_of_call(server: Server, episode: str) -> int:
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    answer = await local.send("POST", "http://policy/v1/responses", b'{"input": "hi"}', session_header(episode), 30.0)
    return answer.status


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


def test_calls_that_differ_only_in_their_trace_share_what_their_headers_are_read_to() -> None:
    misses = _forwarded.cache_info().misses
    for trace in (b"one", b"two"):
        context = RequestContext.of(RawRequest("/v1/responses", {b"x-session-id": b"e", b"traceparent": trace}, b"{}"))
        assert context.trace == {"traceparent": trace.decode()} and "traceparent" not in dict(context.headers)
    assert _forwarded.cache_info().misses == misses + 1


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
    request_context = RequestContext()
    request_context.record_response(HttpResponse(200, {"x-note": value, "x-fine": "1"}, b"", (f"a={value}",)))
    assert (b"x-fine", b"1") in request_context.answer_headers
    assert not any(b"\x01" in sent for _, sent in request_context.answer_headers)


async def test_configured_headers_override_the_callers() -> None:
    fake, _ = await call_through("/v1/responses", {"x-tenant": "red"}, default_headers={"X-Tenant": "blue"})
    assert fake.headers[0]["x-tenant"] == "blue"
