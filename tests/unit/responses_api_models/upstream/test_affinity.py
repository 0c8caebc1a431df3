"""Episodes before several engines: named by x-session-id, each stays on one; a dead one's are lost and begin again."""

from __future__ import annotations

import asyncio

import pytest

from rollyard.responses_api_models.vllm_model.app import VllmModel
from rollyard.services.http.transport import LocalTransport
from rollyard.services.server.app import Server
from rollyard.services.types import Json
from tests.support.scripted_engine import COMPLETION, Step, engine, model_server
from tests.support.token_clients import CALL_TURN, TEXT_TURN, EpisodeClient, open_episode, tool_output, user_message
from tests.support.token_engine import TokenEngine

WAYS = ["generate", "completions", "off"]
SETTINGS: Json = {"logprobs_mode": "processed_logprobs"}


def named(episode: str) -> Json:
    return {"x-session-id": episode}


def two() -> tuple[TokenEngine, TokenEngine]:
    return TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN]), TokenEngine([CALL_TURN, CALL_TURN, TEXT_TURN])


async def begun(player: EpisodeClient, episode: str) -> Json:
    """The first answer of an episode."""
    status, response = await player.send("/v1/responses", {"input": "go"}, named(episode))
    assert status == 200, response
    return response


async def gone_on(player: EpisodeClient, episode: str) -> tuple[int, Json]:
    """A later call of an episode, whatever comes back."""
    return await player.send("/v1/responses", {"input": [user_message("go"), user_message("on")]}, named(episode))


@pytest.mark.parametrize("way", WAYS)
async def test_all_requests_of_an_episode_go_to_the_engine_of_its_first_call(way: str) -> None:
    one, other = two()
    async with open_episode(one, other, token_in=way, **SETTINGS) as player:
        item = await player.ask(headers=named("a"))
        for number in range(2):
            await begun(player, f"between{number}")
            item = await player.ask(tool_output(item), headers=named("a"))
    assert item["token_trace"]["way"] == ("chat" if way == "off" else way)
    seen = [[headers["x-session-id"] for headers in engine.headers].count("a") for engine in (one, other)]
    assert sorted(map(bool, seen)) == [False, True]
    assert max(seen) >= 3
    assert one.requests
    assert other.requests


async def test_episodes_that_begin_together_share_the_engines() -> None:
    one, other = two()
    async with open_episode(one, other, **SETTINGS) as player:
        await asyncio.gather(*(begun(player, f"episode{number}") for number in range(10)))
    assert (one.turns, other.turns) == (5, 5)


async def test_without_the_header_the_prompt_cache_key_names_the_episode() -> None:
    one, other = two()
    async with open_episode(one, other, params={"prompt_cache_key": "a"}, **SETTINGS) as player:
        item = await player.ask()
        await player.ask(tool_output(item))
    assert not (one.requests and other.requests)


async def test_an_episode_whose_engine_died_is_lost_and_its_next_attempt_is_played_elsewhere() -> None:
    one, other = two()
    async with open_episode(one, other, **SETTINGS) as player:
        await begun(player, "a")
        dead, alive = (one, other) if one.requests else (other, one)
        dead.dead = True
        status, problem = await gone_on(player, "a")
        assert (status, problem["type"]) == (410, "urn:rollyard:session_lost")
        assert not alive.requests
        await begun(player, "a")
        status, _ = await gone_on(player, "a")
    assert (status, alive.turns) == (200, 2)


async def test_an_episode_that_has_not_begun_goes_past_a_dead_engine() -> None:
    one, other = two()
    one.dead = True
    async with open_episode(one, other, **SETTINGS) as player:
        for number in range(4):
            await begun(player, f"episode{number}")
            assert (await gone_on(player, f"episode{number}"))[0] == 200
    assert other.turns == 8


async def test_one_dead_engine_alone_is_unreachable_and_waited_for() -> None:
    """There is nowhere else to go: who restarts it gets the episode back."""
    engine = TokenEngine([TEXT_TURN])
    async with open_episode(engine, max_attempts=2, **SETTINGS) as player:
        await begun(player, "a")
        engine.dead = True
        status, problem = await gone_on(player, "a")
        assert (status, problem["type"]) == (503, "urn:rollyard:unreachable")
        engine.dead = False
        assert (await gone_on(player, "a"))[0] == 200


async def test_two_first_calls_at_once_go_past_a_dead_engine_together() -> None:
    one, other = two()
    one.dead = True
    async with open_episode(one, other, **SETTINGS) as player:
        for number in range(4):
            answers = await asyncio.gather(*(begun(player, f"episode{number}") for _ in range(3)))
            assert len(answers) == 3
    assert other.requests


async def test_losing_the_engine_of_a_cache_key_fails_no_call() -> None:
    one, other = two()
    async with open_episode(one, other, params={"prompt_cache_key": "a"}, **SETTINGS) as player:
        await player.ask()
        (one if one.requests else other).dead = True
        status, _ = await player.send("/v1/responses", {"input": [user_message("go")], "prompt_cache_key": "a"})
    assert status == 200


async def test_an_episode_leaves_an_engine_that_fails_again_and_again_and_is_played_elsewhere() -> None:
    async with engine(COMPLETION, Step(status=500)) as bad, engine() as good:
        where = {"base_url": [bad.url, good.url], "max_attempts": 9}
        async with model_server(VllmModel, **where) as server:
            first = await _sent(server, "a")
            found = [await _sent(server, "a") for _ in range(2)]
    assert (first, found) == (200, [410, 200])
    assert len(bad.requests) == 1 + 3


async def _sent(server: Server, episode: str) -> int:
    local = LocalTransport(server.client.transport)
    local.mount("http://policy", server)
    answer = await local.send("POST", "http://policy/v1/responses", b'{"input": "hi"}', named(episode), 30.0)
    return answer.status
