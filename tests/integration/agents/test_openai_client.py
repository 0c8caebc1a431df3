"""OpenAI's official client against an agent: the episode is one Response, streamed or not."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from typing import Any, cast

import openai
import orjson
import pytest
from openai import AsyncOpenAI

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.client import SESSION_END_HEADER
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from tests.integration.agents.test_agents import Counter
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says
from tests.support.openai_client import make_openai_client
from tests.support.scripted_engine import listening

TURNS = [[calls("add", {"amount": 2}, "a")], [says("thinking"), calls("add", {"amount": 1}, "b")]]
KINDS = ["function_call", "function_call_output", "message", "function_call", "function_call_output"]


@contextlib.asynccontextmanager
async def playing(model: Any) -> AsyncIterator[tuple[AsyncOpenAI, InProcessServers, str]]:
    async with episode_servers(Counter, model, GameAgent) as stack:
        cookie = (await stack.post("environment", "/seed_session", {"level": 3})).cookies[0].partition(";")[0]
        async with listening(stack.servers["agent"]) as url, make_openai_client(url, retries=2) as client:
            yield client.with_options(default_headers={"cookie": cookie}), stack, cookie


async def verdict(stack: InProcessServers, cookie: str, response: Json) -> float:
    headers = {"cookie": cookie, SESSION_END_HEADER: "1"}
    body = {"responses_create_params": {"input": []}, "response": response}
    answer = await stack.post("environment", "/verify", body, headers)
    return float(orjson.loads(answer.body)["reward"])


async def test_the_client_plays_an_episode_in_its_own_session() -> None:
    script = Script(TURNS)
    async with playing(script.model) as (client, stack, cookie):
        raw = await client.responses.with_raw_response.create(model="any", input="Play.")
        response = raw.parse()
        assert await verdict(stack, cookie, response.to_dict()) == 3.0
    assert [item.type for item in response.output] == KINDS
    assert response.usage and response.usage.total_tokens == 24
    assert cookie in raw.headers["set-cookie"]


async def test_the_client_reads_an_episode_as_a_stream() -> None:
    script = Script(TURNS)
    async with playing(script.model) as (client, stack, cookie):
        stream = await client.responses.create(model="any", input="Play.", stream=True)
        events = [event async for event in stream]
        assert await verdict(stack, cookie, cast(Any, events[-1]).response.to_dict()) == 3.0
    assert (events[0].type, events[-1].type) == ("response.created", "response.completed")
    done = [cast(Any, event).item.type for event in events if event.type == "response.output_item.done"]
    assert done == KINDS
    assert cookie in stream.response.headers["set-cookie"]
    assert not any("stream" in request for request in script.requests)


async def test_a_dataset_row_that_requests_a_stream_is_still_played() -> None:
    script = Script(TURNS)
    async with playing(script.model) as (_, stack, _):
        row = {"responses_create_params": {"input": "Play.", "stream": True}, "level": 3}
        assert (await stack.run(row))["reward"] == 3.0


@pytest.mark.parametrize("stream", [False, True])
async def test_a_failure_of_the_policy_raises_the_clients_exception_without_a_retry(stream: bool) -> None:
    requests: list[Json] = []

    def failing(context: Context) -> Server:
        server = Script([]).model(context)

        async def refuse(request: Json, call: RawRequest) -> Json:
            requests.append(request)
            problem = Failure(FailureKind.RATE_LIMITED, "slow down", upstream_status=429).problem
            raise Failure.of(problem.model_copy(update={"retry_after": "7", "request_id": "req-9"}))

        server.responses = refuse  # type: ignore[attr-defined]
        return server

    async with playing(failing) as (client, _, _):
        with pytest.raises(openai.RateLimitError, match="slow down") as raised:
            await client.responses.create(model="any", input="Play.", stream=cast(Any, stream))
    assert (raised.value.request_id, raised.value.response.headers["retry-after"]) == ("req-9", "7")
    assert cast(Json, raised.value.body)["server"] == "model"
    assert len(requests) == 1
