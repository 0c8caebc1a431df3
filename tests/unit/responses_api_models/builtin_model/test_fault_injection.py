"""Injected faults: each appears as configured, and none appears otherwise."""

from __future__ import annotations

import json
import time

import pytest
from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import BuiltinModelSettings
from rollyard.services.http.request import HttpResponse
from tests.support.builtin_environment import PROMPT, STEP_TOOL, ModelServer

REQUEST: Json = {"input": PROMPT, "tools": [STEP_TOOL], "temperature": 0}
CHAT: Json = {"messages": PROMPT, "temperature": 0}
BOTH_PATHS = pytest.mark.parametrize(
    ("path", "request_body"), [("/v1/responses", REQUEST), ("/v1/chat/completions", CHAT)], ids=["responses", "chat"]
)


async def faulty(path: str, request_body: Json, **faults: float) -> HttpResponse:
    return await ModelServer(faults=faults).post(request_body, path)


@BOTH_PATHS
async def test_an_injected_error_is_an_openai_error_object_and_a_rate_limit_has_a_retry_after_header(
    path: str, request_body: Json
) -> None:
    answer = await faulty(path, request_body, error_rate=1)
    assert answer.status == 500 and json.loads(answer.body)["error"]["type"] == "server_error"
    answer = await faulty(path, request_body, rate_limit_rate=1, retry_after_s=7)
    assert (answer.status, answer.headers["retry-after"]) == (429, "7")
    assert json.loads(answer.body)["error"]["code"] == "rate_limit_exceeded"


@BOTH_PATHS
async def test_garbage_is_truncated_json_with_status_200(path: str, request_body: Json) -> None:
    answer = await faulty(path, request_body, garbage_rate=1)
    assert answer.status == 200
    with pytest.raises(json.JSONDecodeError):
        json.loads(answer.body)


async def test_latency_and_slow_answers_are_late_but_correct() -> None:
    for settings in ({"faults": {"slow_rate": 1, "slow_s": 0.1}}, {"latency_s": 0.1, "jitter_s": 0.02}):
        started = time.monotonic()
        answer = await ModelServer(**settings).post(REQUEST)
        assert time.monotonic() - started >= 0.1
        assert json.loads(answer.body)["output"][0]["name"] == "step"


async def test_a_hang_exceeds_the_callers_timeout() -> None:
    policy = ModelServer(faults={"hang_rate": 1})
    with pytest.raises(Failure) as caught:
        await policy.post(REQUEST, timeout_s=0.1)
    assert caught.value.kind is FailureKind.TIMEOUT and policy.server.in_flight == 0


async def test_faults_occur_at_their_rates_and_a_repeated_request_may_succeed() -> None:
    policy = ModelServer(faults={"error_rate": 0.2, "rate_limit_rate": 0.3})
    statuses = [(await policy.post({**REQUEST, "seed": 1})).status for _ in range(600)]
    assert 0.14 < statuses.count(500) / 600 < 0.26
    assert 0.23 < statuses.count(429) / 600 < 0.37
    assert statuses.count(200) == 600 - statuses.count(500) - statuses.count(429)


async def test_the_servers_seed_determines_the_order_of_faults() -> None:
    async def statuses(seed: int) -> list[int]:
        policy = ModelServer(seed=seed, faults={"error_rate": 0.5})
        return [(await policy.post(REQUEST)).status for _ in range(40)]

    assert await statuses(1) == await statuses(1) != await statuses(2)


def test_rates_that_add_up_to_more_than_1_are_refused() -> None:
    with pytest.raises(ValidationError, match=r"add up to 1\.2"):
        BuiltinModelSettings.model_validate({"faults": {"error_rate": 0.6, "hang_rate": 0.6}})
