"""Episodes before several engines: named by x-session-id, each stays on one; a dead one's are lost and begin again."""

from __future__ import annotations

import asyncio

import pytest

from services.types import Json
from tests.responses_api_models.token_engine import TokenEngine
from tests.responses_api_models.token_play import CALL, WORDS, Player, asks, observed, playing

WAYS = ["generate", "completions", "off"]
SETTINGS: Json = {"logprobs_mode": "raw_logprobs"}


def named(episode: str) -> Json:
    return {"x-session-id": episode}


def two() -> tuple[TokenEngine, TokenEngine]:
    return TokenEngine([CALL, CALL, WORDS]), TokenEngine([CALL, CALL, WORDS])


async def begun(player: Player, episode: str) -> Json:
    """The first answer of an episode."""
    status, response = await player.send("/v1/responses", {"input": "go"}, named(episode))
    assert status == 200, response
    return response


async def gone_on(player: Player, episode: str) -> tuple[int, Json]:
    """A later call of an episode, whatever comes back."""
    return await player.send("/v1/responses", {"input": [asks("go"), asks("on")]}, named(episode))


@pytest.mark.parametrize("way", WAYS)
async def test_all_requests_of_an_episode_go_to_the_engine_of_its_first_call(way: str) -> None:
    one, other = two()
    async with playing(one, other, token_in=way, **SETTINGS) as player:
        item = await player.ask(headers=named("a"))
        for number in range(2):
            await begun(player, f"between{number}")
            item = await player.ask(observed(item), headers=named("a"))
    assert item["token_trace"]["way"] == ("chat" if way == "off" else way)
    seen = [[headers["x-session-id"] for headers in engine.headers].count("a") for engine in (one, other)]
    assert sorted(map(bool, seen)) == [False, True]
    assert max(seen) >= 3
    assert one.asked
    assert other.asked


async def test_episodes_that_begin_together_share_the_engines() -> None:
    one, other = two()
    async with playing(one, other, **SETTINGS) as player:
        await asyncio.gather(*(begun(player, f"episode{number}") for number in range(10)))
    assert (len(one.asked), len(other.asked)) == (5, 5)


async def test_without_the_header_the_prompt_cache_key_names_the_episode() -> None:
    one, other = two()
    async with playing(one, other, params={"prompt_cache_key": "a"}, **SETTINGS) as player:
        item = await player.ask()
        await player.ask(observed(item))
    assert not (one.asked and other.asked)


async def test_an_episode_whose_engine_died_is_lost_and_its_next_attempt_is_played_elsewhere() -> None:
    one, other = two()
    async with playing(one, other, **SETTINGS) as player:
        await begun(player, "a")
        dead, alive = (one, other) if one.asked else (other, one)
        dead.dead = True
        status, problem = await gone_on(player, "a")
        assert (status, problem["type"]) == (410, "urn:rollyard:session_lost")
        assert not alive.asked
        await begun(player, "a")
        status, _ = await gone_on(player, "a")
    assert (status, len(alive.asked)) == (200, 2)


async def test_an_episode_that_has_not_begun_goes_past_a_dead_engine() -> None:
    one, other = two()
    one.dead = True
    async with playing(one, other, **SETTINGS) as player:
        for number in range(4):
            await begun(player, f"episode{number}")
            assert (await gone_on(player, f"episode{number}"))[0] == 200
    assert len(other.asked) == 8


async def test_one_dead_engine_alone_is_unreachable_and_waited_for() -> None:
    """There is nowhere else to go: who restarts it gets the episode back."""
    engine = TokenEngine([WORDS])
    async with playing(engine, max_attempts=2, **SETTINGS) as player:
        await begun(player, "a")
        engine.dead = True
        status, problem = await gone_on(player, "a")
        assert (status, problem["type"]) == (503, "urn:rollyard:unreachable")
        engine.dead = False
        assert (await gone_on(player, "a"))[0] == 200
