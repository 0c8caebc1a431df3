"""OpenEnv's own client and validator on Rollyard's environments."""

from __future__ import annotations

import asyncio
import subprocess
import sys

import pytest
from openenv.core.env_server.mcp_types import CallToolAction, CallToolObservation
from openenv.core.generic_client import GenericEnvClient
from openenv.core.mcp_client import MCPToolClient

from tests.support.served import Served, openenv, openenv_of_first_task, served_once

sokoban = served_once("grl_sokoban", openenv, max_steps=3)
first_room = served_once("grl_sokoban", openenv_of_first_task, max_steps=3)
gsm8k = served_once("gsm8k", openenv)


async def test_openenv_validate_passes(sokoban: Served) -> None:
    command = [sys.executable, "-m", "openenv.cli", "validate", "--url", sokoban.url, "--timeout", "60"]
    found = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, check=False)
    assert found.returncode == 0, found.stdout + found.stderr
    assert "Verdict: PASS" in found.stdout


@pytest.mark.smoke
async def test_the_tool_client_plays_sokoban_to_its_verdict(sokoban: Served) -> None:
    async with MCPToolClient(base_url=sokoban.url) as env:
        await env.reset(index=0)
        assert [tool.name for tool in await env.list_tools()] == ["step", "submit"]
        with pytest.raises(RuntimeError, match="There is no tool 'fly'"):
            await env.call_tool("fly")
        for _ in range(2):
            assert (await env.call_tool("step", actions=["Up"]))["done"] is False
        last = await env.step(CallToolAction(tool_name="step", arguments={"actions": ["Up"]}))
    assert isinstance(last.observation, CallToolObservation)
    assert (last.done, last.reward) == (True, pytest.approx(-0.3))
    await sokoban.until_closed()


async def test_the_generic_client_answers_gsm8k_and_reads_an_error_for_an_invalid_reset(gsm8k: Served) -> None:
    async with GenericEnvClient(base_url=gsm8k.url) as env:
        with pytest.raises(RuntimeError, match="VALIDATION_ERROR"):
            await env.reset(index="a")
        opened = await env.reset(index=0)
        scored = await env.step({"type": "message", "message": "\\boxed{72}"})
        state = await env.state()
    assert "Natalia" in opened.observation["text"]
    assert (scored.reward, scored.done) == (1.0, True)
    assert (state["step_count"], state["done"]) == (1, True)
    await gsm8k.until_closed()


async def test_a_session_of_the_mcp_route_is_played_by_the_production_client(first_room: Served) -> None:
    async with MCPToolClient(base_url=first_room.url) as env:
        env.use_production_mode = True
        assert [tool.name for tool in await env.list_tools()] == ["step", "submit"]
        steps = [await env.call_tool("step", actions=["Up"]) for _ in range(3)]
    assert [step["done"] for step in steps] == [False, False, True]
    await first_room.until_closed()
