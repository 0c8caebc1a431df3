"""Calls to engines: retries end, failures name their cause, and the key is never shown."""

from __future__ import annotations

import asyncio
import email.utils
import logging
import time
from typing import Any

import pytest

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.upstream.replicas import Replicas
from rollyard.responses_api_models.upstream.response_parsing import json_object, retry_after_s
from rollyard.responses_api_models.upstream.settings import EndpointSettings
from rollyard.responses_api_models.upstream.upstream import Upstream
from rollyard.services.http.transport import HttpTransport, Transport
from tests.support.fixtures import http_transport, unused_url
from tests.support.scripted_engine import COMPLETION, Step, engine
from tests.support.token_clients import CALL_TURN, TEXT_TURN, open_episode, tool_output, user_message
from tests.support.waiting import deadline_s, until
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


@pytest.mark.parametrize(
    "step",
    [
        Step(status=500),
        Step(status=503),
        Step(status=429),
        Step(status=408),
        Step(status=409),
        Step(status=425),
        Step(b'{"choices": ['),
        Step(b"<html>busy</html>"),
        Step(cut=True),
    ],
    ids=["500", "503", "429", "408", "409", "425", "truncated json", "html", "connection lost"],
)
async def test_a_temporary_fault_is_retried(step: Step) -> None:
    async with engine(step, COMPLETION) as fake:
        assert await post(fake.url) == COMPLETION
    assert len(fake.requests) == 2


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


async def test_a_partial_answer_is_none_and_retried() -> None:
    async with engine(Step(COMPLETION, 206, {"content-range": "bytes 0-9/20"}), COMPLETION) as fake:
        assert await post(fake.url) == COMPLETION
    async with engine(Step(COMPLETION, 206)) as fake:
        failure = await failure_of(fake.url)
    assert (failure.kind, failure.problem.upstream_status) == (FailureKind.MALFORMED_ANSWER, 206)


@pytest.mark.parametrize(
    ("status", "suffix", "hint"),
    [(401, "/v1", "policy_api_key"), (404, "/v1", "policy_model_name"), (404, "", "should end in /v1")],
)
async def test_a_refusal_says_what_to_check(status: int, suffix: str, hint: str) -> None:
    async with engine(Step({"message": "x"}, status)) as fake:
        assert hint in (await failure_of(fake.url.removesuffix("/v1") + suffix)).problem.detail


@pytest.mark.parametrize(
    ("step", "kind", "upstream_status"),
    [
        (Step({"error": "slow down"}, 429), FailureKind.RATE_LIMITED, 429),
        (Step(b"boom", 500), FailureKind.UPSTREAM_ERROR, 500),
        (Step(b"", 503), FailureKind.UPSTREAM_ERROR, 503),
        (Step(b"[1]"), FailureKind.MALFORMED_ANSWER, None),
        (Step(cut=True), FailureKind.CONNECTION_LOST, None),
    ],
    ids=["429", "500", "503", "a list", "cut"],
)
async def test_a_persistent_fault_ends_with_its_own_kind(
    step: Step, kind: FailureKind, upstream_status: int | None
) -> None:
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


async def test_a_timeout_is_retried_while_another_attempt_fits() -> None:
    async with engine(Step(delay_s=30), COMPLETION) as fake:
        assert await post(fake.url, request_timeout_s=2, total_timeout_s=60) == COMPLETION


@pytest.mark.parametrize(
    "settings",
    [{"request_timeout_s": 1.0, "total_timeout_s": 1.5}, {"request_timeout_s": 0.5, "retry_timeouts": False}],
)
async def test_a_timeout_is_final_if_no_other_attempt_fits_or_is_wanted(settings: Json) -> None:
    async with engine(Step(delay_s=deadline_s())) as fake:
        assert (await failure_of(fake.url, **settings)).kind is FailureKind.TIMEOUT
    assert len(fake.requests) == 1


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
async def test_an_endpoint_that_refuses_what_another_accepts_is_avoided(status: int) -> None:
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


async def test_hundreds_of_calls_run_concurrently() -> None:
    async with engine(Step(delay_s=deadline_s())) as fake, http_transport() as transport:
        upstream = make_upstream(transport, fake.url)
        calls = [asyncio.create_task(upstream.post("/x", b"{}", json_object)) for _ in range(200)]
        await until(lambda: fake.concurrent == 200)  # connection pools usually allow 100
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)


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


@pytest.mark.parametrize("key", ["a", "no", "EMPTY"])
async def test_a_short_key_does_not_mangle_error_texts(key: str) -> None:
    text = f"The model is not an adapter, EMPTY or otherwise. You sent {key!r}"
    async with engine(Step({"error": {"message": text, "param": key}}, 401)) as fake, http_transport() as transport:
        with pytest.raises(Failure) as caught:
            await make_upstream(transport, fake.url, api_key=key).post("/x", b"{}", json_object)
    assert text in str(caught.value)


@pytest.mark.parametrize(
    "url",
    [
        "127.0.0.1:8000/v1",
        "",
        "ftp://host/v1",
        "http://user:pass@host/v1",
        "http://[::1",
        [],
        "http://host/v1?key=pass",
    ],
    ids=str,
)
def test_an_unusable_address_is_refused_at_startup(url: str | list[str]) -> None:
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
