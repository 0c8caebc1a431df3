from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Iterator
from typing import Any, ClassVar

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.activity import RunningEpisodes
from rollyard.records.errors import Failure
from rollyard.records.types import Json
from rollyard.resources_servers.base import Environment, EnvironmentSettings, Verdict, Verification, tool
from tests.support.in_process import InProcessServers, Script, calls, episode_servers, says

ROW: Json = {"responses_create_params": {"input": "Play."}, "_ng_task_index": 7, "_ng_rollout_index": 2}


class Gates(Environment[EnvironmentSettings]):
    """An environment in which every call waits until the test opens the gate."""

    reached: ClassVar[asyncio.Queue[str]]
    open: ClassVar[asyncio.Event]

    async def _wait(self, name: str) -> None:
        self.reached.put_nowait(name)
        await self.open.wait()
        self.open.clear()

    async def seed(self) -> list[Json]:
        await self._wait("seed")
        return []

    @tool
    async def look(self) -> Json:
        """Look."""
        await self._wait("tool")
        return {"done": True}

    async def verify(self, response: Verification) -> Verdict:
        await self._wait("verify")
        return Verdict(reward=1.0)


@pytest.fixture(autouse=True)
def gates() -> Iterator[None]:
    Gates.reached, Gates.open = asyncio.Queue(), asyncio.Event()
    yield


@contextlib.asynccontextmanager
async def stack(**settings: Any) -> AsyncIterator[InProcessServers]:
    script = Script([[calls("look", {})], [says("bye")]])
    async with episode_servers(Gates, script, GameAgent, **settings) as wired_stack:
        yield wired_stack


async def running_episodes(wired_stack: InProcessServers, query: str = "") -> RunningEpisodes:
    answer = await wired_stack.transport.send("GET", f"http://agent:1/episodes{query}", b"", {}, 5.0)
    return RunningEpisodes.model_validate_json(answer.body)


async def test_an_episode_reports_its_row_stage_turn_and_the_server_it_waits_for() -> None:
    stages: list[tuple[str, str, int]] = []
    async with stack() as wired_stack:
        playing = asyncio.create_task(wired_stack.run(ROW))
        for _ in range(3):
            await Gates.reached.get()
            now = await running_episodes(wired_stack)
            (episode,) = now.episodes
            assert (episode.agent, episode.task, episode.repeat, now.total) == ("agent", 7, 2, 1)
            stages.append((episode.stage, episode.server, episode.turn))
            Gates.open.set()
        await playing
        assert await running_episodes(wired_stack) == RunningEpisodes(agent="agent", total=0, stages=[], episodes=[])
    assert stages == [("seed", "environment", 0), ("tool", "environment", 1), ("verify", "environment", 1)]


async def test_the_oldest_come_first_and_a_limit_does_not_change_the_total_or_the_stages() -> None:
    async with stack() as wired_stack:
        playing = [asyncio.create_task(wired_stack.run({**ROW, "_ng_rollout_index": n})) for n in range(5)]
        for _ in playing:
            await Gates.reached.get()
        now = await running_episodes(wired_stack, "?limit=2")
        assert [episode.repeat for episode in now.episodes] == [0, 1]
        assert now.total == 5 and [(stage.stage, stage.episodes) for stage in now.stages] == [("seed", 5)]
        assert now.stages[0].slowest.repeat == 0
        for task in playing:
            task.cancel()
        Gates.open.set()
        await asyncio.gather(*playing, return_exceptions=True)


async def test_a_failed_episode_is_no_longer_listed() -> None:
    async with stack() as wired_stack:
        with pytest.raises(Failure):
            await wired_stack.run({"responses_create_params": "no"})
        assert (await running_episodes(wired_stack)).total == 0


async def test_an_episode_in_the_callers_session_has_the_callers_id() -> None:
    async with stack() as wired_stack:
        Gates.open.set()
        seeded = await wired_stack.post("environment", "/seed_session", ROW)
        Gates.reached.get_nowait()
        headers = {"cookie": seeded.cookies[0].partition(";")[0], "x-session-id": "mine"}
        playing = asyncio.create_task(wired_stack.post("agent", "/v1/responses", {"input": "Play."}, headers))
        await Gates.reached.get()
        (episode,) = (await running_episodes(wired_stack)).episodes
        assert (episode.episode, episode.task, episode.stage) == ("mine", None, "tool")
        Gates.open.set()
        await playing


async def test_metrics_count_the_running_episodes_by_stage() -> None:
    async with stack() as wired_stack:
        playing = asyncio.create_task(wired_stack.run(ROW))
        await Gates.reached.get()
        text = (await wired_stack.transport.send("GET", "http://agent:1/metrics", b"", {}, 5.0)).body
        assert b'rollyard_episodes{stage="seed",waits_for="environment"} 1.0' in text
        assert b'rollyard_episodes{stage="model",waits_for="model"} 0.0' in text
        assert b'rollyard_episodes_stuck{stage="seed",waits_for="environment"} 0.0' in text
        playing.cancel()
        Gates.open.set()
        await asyncio.gather(playing, return_exceptions=True)


async def test_concurrent_calls_are_timed_separately() -> None:
    class Together(GameAgent):
        async def play(self, episode: Any) -> Any:
            turn = await episode.ask()
            await asyncio.gather(*(episode.call(call) for call in turn.calls))
            return turn.ending

    class Sleepy(Environment[EnvironmentSettings]):
        """Its tool takes 50 ms."""

        @tool
        async def look(self) -> Json:
            """Look."""
            await asyncio.sleep(0.05)
            return {}

        async def verify(self, response: Verification) -> Verdict:
            return Verdict(reward=1.0)

    script = Script([[calls("look", {}, "a"), says("and")]])
    async with episode_servers(Sleepy, script, Together) as wired_stack:
        timings = (await wired_stack.run(ROW))["timings"]
    assert timings["tool_s"] >= 0.05 and orjson.dumps(timings)
