"""OpenEnv servers as environments: Rollyard's own over OpenEnv, and servers that misbehave."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import WSMsgType, web

from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.openenv_environment.app import OpenEnvEnvironment
from tests.support.in_process import InProcessServers, Script, agent, calls, environment, in_process_servers, says
from tests.support.served import openenv, served
from tests.support.waiting import short_s

Reply = Callable[[Json], Any]
TEXT_ACTION = {"type": "object", "properties": {"guess": {"type": "string"}, "metadata": {}}, "required": ["guess"]}


@contextlib.asynccontextmanager
async def openenv_server(reply: Reply, action: Json | None = None) -> AsyncIterator[str]:
    """An OpenEnv server whose answers `reply` makes: an object is sent, None drops the connection, `...` hangs."""

    async def schema(request: web.Request) -> web.Response:
        return web.json_response({"action": action or TEXT_ACTION, "observation": {}, "state": {}})

    async def play(request: web.Request) -> web.WebSocketResponse:
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        async for message in socket:
            if message.type is not WSMsgType.TEXT:
                break
            answer = reply(message.json())
            if answer is None:
                break
            if answer is not ...:
                await socket.send_json(answer)
        await socket.close()
        return socket

    app = web.Application()
    app.router.add_get("/schema", schema)
    app.router.add_get("/ws", play)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    try:
        yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()


def observed(text: str, reward: float | None = None, *, done: bool = False) -> Json:
    return {"type": "observation", "data": {"observation": {"text": text}, "reward": reward, "done": done}}


def failed(code: str) -> Json:
    return {"type": "error", "data": {"message": "said the server", "code": code}}


def replies(*steps: Any) -> Reply:
    """Answers a reset, then each step with the next of `steps`."""
    left = list(steps)
    return lambda message: observed("Guess a word.") if message["type"] == "reset" else left.pop(0)


@contextlib.asynccontextmanager
async def playing(
    url: str, turns: list[Any], kind: Any = GameAgent, start_wait_s: float = 60, **settings: Any
) -> AsyncIterator[tuple[InProcessServers, Script]]:
    script = Script(turns)
    made = environment(OpenEnvEnvironment, url=url, start_wait_s=start_wait_s, **settings)
    async with in_process_servers({"environment": made, "model": script.model, "agent": agent(kind)}) as servers:
        yield servers, script


async def play(servers: InProcessServers, **row: Any) -> Json:
    return await servers.run({"responses_create_params": {"input": "Play."}, **row})


async def test_the_return_is_the_reward_and_done_ends_the_episode_which_the_rows_seed_and_arguments_began() -> None:
    seen: list[Json] = []
    answer = replies(observed("warm", 0.25), observed("won", 1.0, done=True))

    def reply(message: Json) -> Any:
        seen.append(message)
        return answer(message)

    turns = [calls("act", {"guess": "a"}), calls("act", {"guess": "b"})]
    async with openenv_server(reply) as url, playing(url, turns) as (servers, _):
        row = await play(servers, seed=7, reset={"level": "hard"})
    assert (row["reward"], row["finish_reason"], row["openenv_steps"]) == (1.25, "done", 2)
    assert seen[0] == {"type": "reset", "data": {"level": "hard", "seed": 7}}


async def test_the_message_is_the_action_in_turn_based_mode() -> None:
    async with (
        openenv_server(replies(observed("warm", 0.5), observed("won", 1.0, done=True))) as url,
        playing(url, [says("apple"), says("pear")], TurnAgent) as (servers, _),
    ):
        row = await play(servers)
    assert (row["reward"], row["step_rewards"]) == (1.5, [0.5, 1.0])


@pytest.mark.parametrize("code", ["VALIDATION_ERROR", "EXECUTION_ERROR"])
async def test_a_rejected_action_is_words_for_the_model(code: str) -> None:
    async with (
        openenv_server(replies(failed(code), observed("won", 1.0, done=True))) as url,
        playing(url, [calls("act", {"guess": 1}), calls("act", {"guess": "b"})]) as (servers, _),
    ):
        row = await play(servers)
    outputs = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert "said the server" in outputs[0]
    assert row["reward"] == 1.0


@pytest.mark.parametrize(
    ("step", "kind"),
    [
        (None, FailureKind.CONNECTION_LOST),
        (failed("SESSION_ERROR"), FailureKind.SERVER_ERROR),
        (failed("CAPACITY_REACHED"), FailureKind.OVERLOADED),
        (..., FailureKind.TIMEOUT),
        *((observed("x", reward), FailureKind.MALFORMED_ANSWER) for reward in (10**400, float("nan"))),
        ({"data": {"observation": {}, "reward": 1.0, "done": "true"}}, FailureKind.MALFORMED_ANSWER),
        ({"type": "observation"}, FailureKind.MALFORMED_ANSWER),
        ({"type": "observation", "data": {"observation": 3}}, FailureKind.MALFORMED_ANSWER),
    ],
)
async def test_a_broken_server_is_a_failure_and_no_reward(step: Any, kind: FailureKind) -> None:
    async with (
        openenv_server(replies(step)) as url,
        playing(url, [calls("act", {"guess": "a"})], step_timeout_s=short_s(), timeout="failure") as (servers, _),
    ):
        with pytest.raises(Failure) as raised:
            await play(servers)
    assert raised.value.kind is kind


async def test_an_action_that_hangs_the_server_ends_the_episode_with_the_rewards_so_far() -> None:
    async with (
        openenv_server(replies(observed("warm", 0.25), ...)) as url,
        playing(url, [calls("act", {"guess": "a"})], step_timeout_s=short_s()) as (servers, _),
    ):
        row = await play(servers)
    assert (row["reward"], row["openenv_timed_out"]) == (0.25, True)


async def test_a_start_without_a_server_or_docker_is_refused() -> None:
    with pytest.raises(Failure, match=r"http://127.0.0.1:9"):
        async with playing("http://127.0.0.1:9", [says("x")], start_wait_s=0.5):
            pass
    made = environment(OpenEnvEnvironment, image="echo-env", docker="no-such-docker")
    with pytest.raises(OperatorError, match="not installed"):
        async with in_process_servers({"environment": made}):
            pass


async def test_rollyards_own_environment_gives_the_same_reward_over_openenv(tmp_path: Path) -> None:
    async with served("grl_sokoban", openenv, tmp_path, max_steps=2) as found:
        moves = calls("step", {"actions": ["Up", "Up"]})
        async with playing(found.url, [moves]) as (servers, _):
            row = await play(servers, reset={"index": 0})
        await found.until_closed()
    assert row["reward"] == pytest.approx(-0.2)
    assert row["finish_reason"] == "done"


async def test_many_episodes_at_once_leave_no_connection_open(tmp_path: Path) -> None:
    async with served("gsm8k", openenv, tmp_path) as found:
        turns = [calls("submit", {"answer": "\\boxed{72}"})]
        async with playing(found.url, turns) as (servers, _):
            rows = await asyncio.gather(*(play(servers, reset={"index": 0}) for _ in range(50)))
        await found.until_closed()
    assert {row["reward"] for row in rows} == {1.0}
