"""Episodes on several engines: x-session-id names an episode, which stays on one engine and is lost with it."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.records.types import Json
from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.transport import LocalTransport
from rollyard.services.server.app import Server
from tests.support.scripted_engine import COMPLETION, Step, engine, model_server
from tests.support.token_clients import CALL_TURN, TEXT_TURN, EpisodeClient, open_episode, tool_output, user_message
from tests.support.token_engine import TokenEngine

BACKENDS = ["generate", "completions", "off"]
SETTINGS: Json = {"logprobs_mode": "processed_logprobs"}


def session_header(episode: str) -> Json:
    return {"x-session-id": episode}


def two_engines() -> tuple[TokenEngine, TokenEngine]:
    return TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN])


async def first_call(client: EpisodeClient, episode: str) -> Json:
    """The response to an episode's first call."""
    status, response = await client.send("/v1/responses", {"input": "go"}, session_header(episode))
    assert status == 200, response
    return response


async def later_call(client: EpisodeClient, episode: str) -> tuple[int, Json]:
    """Status and body of a later call of an episode."""
    return await client.send(
        "/v1/responses", {"input": [user_message("go"), user_message("on")]}, session_header(episode)
    )


@pytest.mark.parametrize("backend", BACKENDS)
async def test_all_requests_of_an_episode_go_to_the_engine_of_its_first_call(backend: str) -> None:
    one, other = two_engines()
    async with open_episode(one, other, token_in=backend, **SETTINGS) as client:
        item = await client.ask(headers=session_header("a"))
        for number in range(2):
            await first_call(client, f"between{number}")
            item = await client.ask(tool_output(item), headers=session_header("a"))
    assert item["token_trace"]["way"] == ("chat" if backend == "off" else backend)
    counts = [[headers["x-session-id"] for headers in engine.headers].count("a") for engine in (one, other)]
    assert sorted(map(bool, counts)) == [False, True]
    assert max(counts) >= 3
    assert one.requests
    assert other.requests


async def test_concurrent_first_calls_are_spread_over_the_engines() -> None:
    one, other = two_engines()
    async with open_episode(one, other, **SETTINGS) as client:
        await asyncio.gather(*(first_call(client, f"episode{number}") for number in range(10)))
    assert (one.turns, other.turns) == (5, 5)


async def test_without_the_header_the_prompt_cache_key_determines_the_engine() -> None:
    one, other = two_engines()
    async with open_episode(one, other, params={"prompt_cache_key": "a"}, **SETTINGS) as client:
        item = await client.ask()
        await client.ask(tool_output(item))
    assert not (one.requests and other.requests)


async def test_an_episode_whose_engine_died_is_lost_and_its_next_attempt_uses_another_engine() -> None:
    one, other = two_engines()
    async with open_episode(one, other, **SETTINGS) as client:
        await first_call(client, "a")
        dead, alive = (one, other) if one.requests else (other, one)
        dead.dead = True
        status, problem = await later_call(client, "a")
        assert (status, problem["type"]) == (410, "urn:rollyard:session_lost")
        assert not alive.requests
        await first_call(client, "a")
        status, _ = await later_call(client, "a")
    assert (status, alive.turns) == (200, 2)


async def test_a_new_episode_avoids_a_dead_engine() -> None:
    one, other = two_engines()
    one.dead = True
    async with open_episode(one, other, **SETTINGS) as client:
        for number in range(4):
            await first_call(client, f"episode{number}")
            assert (await later_call(client, f"episode{number}"))[0] == 200
    assert other.turns == 8


async def test_a_single_dead_engine_is_unreachable_until_it_returns() -> None:
    """There is no other engine: once it is back, the episode continues."""
    engine = TokenEngine([TEXT_TURN])
    async with open_episode(engine, max_attempts=2, **SETTINGS) as client:
        await first_call(client, "a")
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
            answers = await asyncio.gather(*(first_call(client, f"episode{number}") for _ in range(3)))
            assert len(answers) == 3
    assert other.requests


async def test_no_call_fails_when_the_engine_of_a_cache_key_dies() -> None:
    one, other = two_engines()
    async with open_episode(one, other, params={"prompt_cache_key": "a"}, **SETTINGS) as client:
        await client.ask()
        (one if one.requests else other).dead = True
        status, _ = await client.send("/v1/responses", {"input": [user_message("go")], "prompt_cache_key": "a"})
    assert status == 200


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
