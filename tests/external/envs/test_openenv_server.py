"""A server of the real package openenv as an environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import uvicorn

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.types import Json
from rollyard.resources_servers.openenv_environment.app import OpenEnvEnvironment
from rollyard.services.http.listener import bind
from tests.external.envs.guessing_server import guessing_app
from tests.support.coming_from import MODEL, endpoint, our_rewards, pair, program, run_lines
from tests.support.commands import BIN
from tests.support.in_process import Script, agent, calls, environment, in_process_servers
from tests.support.scripted_engine import listening
from tests.support.waiting import deadline_s


class _Server(uvicorn.Server):
    @contextlib.contextmanager
    def capture_signals(self) -> Any:
        yield


@contextlib.asynccontextmanager
async def guessing() -> AsyncIterator[str]:
    """The server, on a free port."""
    sock = bind("127.0.0.1", 0)
    server = _Server(uvicorn.Config(guessing_app(), log_config=None, ws="websockets-sansio", lifespan="on"))
    serving = asyncio.create_task(server.serve(sockets=[sock]))
    try:
        yield f"http://127.0.0.1:{sock.getsockname()[1]}"
    finally:
        server.should_exit = True
        await serving


async def play(turns: Any, rows: list[Json]) -> tuple[list[Json], Script]:
    script = Script(turns)
    async with guessing() as url:
        made = environment(OpenEnvEnvironment, url=url, start_wait_s=deadline_s())
        servers = {"environment": made, "model": script.model, "agent": agent(GameAgent)}
        async with in_process_servers(servers) as stack:
            return await asyncio.gather(*map(stack.run, rows)), script


async def test_the_schema_is_the_tool_and_the_steps_add_up_to_the_reward() -> None:
    turns = [calls("act", {"number": 3}), calls("act", {"number": 7})]
    (row,), script = await play(turns, [{"seed": 7}])
    assert (row["reward"], row["finish_reason"], row["openenv_steps"]) == (0.9, "done", 2)
    tool = script.requests[0]["tools"][0]
    assert (tool["name"], list(tool["parameters"]["properties"])) == ("act", ["number"])
    assert "guess a number" in str(script.requests[0]["input"])


async def test_an_invalid_action_and_one_that_raises_are_words_for_the_model() -> None:
    turns = [calls("act", {"number": "x"}), calls("act", {"number": 11}), calls("act", {"number": 7})]
    (row,), _ = await play(turns, [{"seed": 7}])
    outputs = [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]
    assert "rejects this action" in outputs[0] and "must not exceed 9" in outputs[1]
    assert row["reward"] == 1.0


async def test_episodes_at_once_have_a_seed_each() -> None:
    def turn(request: Json) -> Any:
        return calls("act", {"number": sum(item.get("type") == "function_call" for item in request["input"])})

    rows, _ = await play(turn, [{"seed": seed} for seed in range(8)])
    assert [row["openenv_steps"] for row in rows] == [1, 2, 3, 4, 5, 6, 7, 8]


async def test_the_pair_of_the_page_gives_as_many_episodes_with_the_same_rewards(tmp_path: Path) -> None:
    def answer(request: Json) -> str | Json:
        action = '{"number": 1}'
        if request["messages"][-1]["role"] == "tool":
            return "Done."
        call = {"id": "c", "type": "function", "function": {"name": "act", "arguments": action}}
        return {"content": None, "tool_calls": [call]} if request.get("tools") else action

    (tmp_path / "rows.jsonl").write_text("".join(json.dumps({"seed": seed}) + "\n" for seed in (0, 1)))
    async with listening(endpoint(answer)) as model, guessing() as server:
        (tmp_path / "play.py").write_text(program("OpenEnv", {MODEL: model, "http://127.0.0.1:8001": server}))
        found = pair("OpenEnv", {MODEL: model, "http://127.0.0.1:8001": server})
        printed = await run_lines(found.theirs, tmp_path, BIN)
        await run_lines(found.ours, tmp_path, BIN)
    assert sorted(map(float, printed.split())) == our_rewards(tmp_path) == [-0.1, -0.1, 1.0, 1.0]
