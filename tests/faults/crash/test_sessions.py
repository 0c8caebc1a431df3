"""Sessions of an environment: never mixed up, never forged, never left open."""

from __future__ import annotations

import asyncio
import os
import random
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import orjson
import pytest
import pytest_asyncio

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.config.run_config import RunConfig
from rollyard.services.http.client import Session
from rollyard.services.runtime.stack import Stack
from tests.support.stacks import AGENT, PUZZLES, colocated, load_config, read_rows
from tests.support.waiting import deadline_s, until

from .harness import ENVIRONMENT, falls_to_zero, forked, gauge, ready_pid

EPISODES = 64
STEPS = 12
MOVES = ("Up", "Down", "Left", "Right")


@pytest_asyncio.fixture(scope="module")
async def stack(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Stack]:
    async with colocated(load_config(), tmp_path_factory.mktemp("stack")) as running:
        yield running


class EpisodePlayer:
    def __init__(self, stack: Stack, number: int) -> None:
        self.session = Session(stack.client, ENVIRONMENT)
        self._row = orjson.dumps(read_rows(PUZZLES)[number])
        self._rng = random.Random(number)
        self.answers: list[Json] = []

    async def seed(self) -> None:
        await self._post("/seed_session", self._row)

    async def step(self) -> None:
        await self._post("/step", orjson.dumps({"actions": self._rng.choices(MOVES, k=2)}))

    async def verify(self) -> None:
        await self._post("/verify", orjson.dumps({"response": {"output": []}}))

    async def close(self) -> None:
        await self._post("/close", b"{}")

    async def _post(self, path: str, body: bytes) -> None:
        self.answers.append(orjson.loads(await self.session.post(path, body, deadline_s())))


async def test_interleaved_episodes_behave_like_sequential_ones(stack: Stack) -> None:
    serial = [EpisodePlayer(stack, number) for number in range(EPISODES)]
    for episode in serial:
        for act in [episode.seed, *[episode.step] * STEPS, episode.verify, episode.close]:
            await act()
    interleaved = [EpisodePlayer(stack, number) for number in range(EPISODES)]
    await asyncio.gather(*(episode.seed() for episode in interleaved))
    assert await gauge(stack, ENVIRONMENT, "rollyard_sessions") == EPISODES
    rng = random.Random("shuffle")
    for _ in range(STEPS):
        await asyncio.gather(*(episode.step() for episode in rng.sample(interleaved, EPISODES)))
    await asyncio.gather(*(episode.verify() for episode in rng.sample(interleaved, EPISODES)))
    await asyncio.gather(*(episode.close() for episode in rng.sample(interleaved, EPISODES)))
    assert [episode.answers for episode in interleaved] == [episode.answers for episode in serial]
    assert await gauge(stack, ENVIRONMENT, "rollyard_sessions") == 0


async def test_concurrent_calls_of_one_episode_are_executed_sequentially(stack: Stack) -> None:
    episode = EpisodePlayer(stack, 0)
    await episode.seed()
    await asyncio.gather(*(episode.step() for _ in range(STEPS)))
    assert [answer["steps"] for answer in episode.answers[1:]] == list(range(2, 2 * STEPS + 1, 2))
    await episode.close()


async def _cookie(stack: Stack) -> str:
    answer = await Session(stack.client, ENVIRONMENT).send(
        "/seed_session", orjson.dumps(read_rows(PUZZLES)[0]), deadline_s()
    )
    return answer.cookies[0].partition(";")[0]


async def _failure_kind(stack: Stack, cookie: str, path: str) -> FailureKind:
    session = Session(stack.client, ENVIRONMENT, cookie)
    with pytest.raises(Failure) as raised:
        await session.post(path, b'{"actions": []}', deadline_s())
    assert raised.value.problem.status == 410
    assert raised.value.problem.server == ENVIRONMENT
    return raised.value.kind


@pytest.mark.parametrize("path", ["/step", "/verify", "/close", "/no_such_tool"])
async def test_a_forged_cookie_opens_nothing(stack: Stack, path: str) -> None:
    name, _, value = (await _cookie(stack)).partition("=")
    session_id, _, signature = value.partition(".")
    forged = [
        "",
        f"{name}={session_id}",
        f"{name}={session_id}.",
        f"{name}={session_id}.{signature[:-1]}{'0' if signature[-1] != '0' else '1'}",
        f"{name}={'0' * len(session_id)}.{signature}",
        f"{name}={session_id}.\xe9\xe9",
        f"another={value}",
    ]
    kinds = [await _failure_kind(stack, cookie, path) for cookie in forged]
    assert set(kinds) == {FailureKind.SESSION_LOST}
    await Session(stack.client, ENVIRONMENT, f"{name}={value}").post("/close", b"{}", deadline_s())


async def test_a_cookie_of_another_run_opens_nothing(stack: Stack, tmp_path: Path) -> None:
    async with colocated(load_config(), tmp_path) as other:
        cookie = await _cookie(other)
        assert await _failure_kind(stack, cookie, "/step") is FailureKind.SESSION_LOST


async def test_a_session_without_activity_is_closed(tmp_path: Path) -> None:
    idle = f"+{ENVIRONMENT}.resources_servers.grl_sokoban.session_idle_s=0.2"
    async with colocated(load_config(idle), tmp_path) as stack:
        cookie = await _cookie(stack)
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")
        assert await _failure_kind(stack, cookie, "/step") is FailureKind.SESSION_LOST


async def test_an_invalid_row_leaves_no_session(stack: Stack) -> None:
    before = await gauge(stack, ENVIRONMENT, "rollyard_sessions")
    with pytest.raises(Failure) as raised:
        await Session(stack.client, ENVIRONMENT).post("/seed_session", b'{"seed": 1, "dim_room": [4, 4]}', deadline_s())
    assert raised.value.kind is FailureKind.BAD_TASK
    assert await gauge(stack, ENVIRONMENT, "rollyard_sessions") == before


async def _playing(stack: Stack, episodes: int) -> list[asyncio.Task[object]]:
    """Rollouts that wait for the policy, each with an open session."""
    rows = read_rows(PUZZLES)[:episodes]
    running = [asyncio.create_task(stack.client.post(AGENT, "/run", orjson.dumps(row), deadline_s())) for row in rows]
    while await gauge(stack, ENVIRONMENT, "rollyard_sessions") < episodes:
        await asyncio.sleep(0.02)
    return [*running]


def _slow(*more: str) -> RunConfig:
    return load_config("policy_model.responses_api_models.builtin_model.latency_s=1000", *more)


async def test_a_caller_that_disconnects_leaves_no_session(tmp_path: Path) -> None:
    async with forked(_slow(), tmp_path) as stack:
        for task in await _playing(stack, 20):
            task.cancel()
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")


async def test_an_agent_that_is_killed_leaves_no_session(tmp_path: Path) -> None:
    async with forked(_slow(f"+{ENVIRONMENT}.resources_servers.grl_sokoban.orphan_s=0.5"), tmp_path) as stack:
        running = await _playing(stack, 20)
        # The response to the heartbeat that reports them lists the agent: sessions of unknown agents are left alone.
        await until(lambda: any(one.sessions == 20 for one in stack.registry.instances()))
        pid = ready_pid(stack, AGENT)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        await asyncio.gather(*running, return_exceptions=True)
        await falls_to_zero(stack, ENVIRONMENT, "rollyard_sessions")


async def test_no_agent_waits_for_the_sessions_of_a_killed_environment(tmp_path: Path) -> None:
    async with forked(_slow(), tmp_path) as stack:
        running = await _playing(stack, 5)
        pid = ready_pid(stack, ENVIRONMENT)
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        for task in running:
            task.cancel()
        await falls_to_zero(stack, AGENT, "rollyard_sessions")
