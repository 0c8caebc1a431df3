"""The programming environments as servers."""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
import pytest

from rollyard.agents.simple_agent.app import SimpleAgent
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.humaneval import app as humaneval_app
from rollyard.resources_servers.mbpp import app as mbpp_app
from rollyard.services.sandbox import isolation_modes
from rollyard.services.server.app import Context, Server
from tests.support.in_process import InProcessServers, Script, agent, in_process_servers, says
from tests.support.waiting import deadline_s

ENVIRONMENTS = {"mbpp": mbpp_app.server, "humaneval": humaneval_app.server}


def environment_server(name: str, **settings: Any) -> Any:
    def build(context: Context) -> Server:
        kind = ENVIRONMENTS[name]
        return kind(kind.Settings(**settings), context)

    return build


async def examples(stack: InProcessServers) -> list[Json]:
    answer = await stack.transport.send("GET", "http://environment:1/examples", b"", {}, deadline_s())
    found: list[Json] = orjson.loads(answer.body)
    return found


@pytest.mark.parametrize("name", ENVIRONMENTS)
async def test_every_example_row_can_be_fetched_and_run(name: str) -> None:
    script = Script([[says("```python\ndef min_cost(*given): return 8\n```")]])
    async with in_process_servers(
        {"environment": environment_server(name), "model": script.model, "agent": agent(SimpleAgent)}
    ) as stack:
        rows = await examples(stack)
        rollouts = await asyncio.gather(*[stack.run(row) for row in rows])
    assert len(rollouts) == 5
    assert [rollout["reward"] for rollout in rollouts] == [0.0] * 5
    assert all(rollout["sandbox"] and rollout["reason"] for rollout in rollouts)


async def test_a_right_answer_gets_a_reward_of_one_through_the_whole_stack() -> None:
    row = {"test_list": ["assert f(1) == 2"], "responses_create_params": {"input": "Write f."}}
    script = Script([[says("```python\ndef f(x): return x + 1\n```")]])
    async with in_process_servers(
        {"environment": environment_server("mbpp"), "model": script.model, "agent": agent(SimpleAgent)}
    ) as stack:
        rollout = await stack.run(row)
    assert (rollout["reward"], rollout["ending"], rollout["tests_passed"]) == (1.0, "passed", 1)


async def test_without_isolation_the_server_refuses_to_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(isolation_modes, "modes", lambda python, bubblewrap, *, unsandboxed: [])
    monkeypatch.setattr("rollyard.services.sandbox.sandbox.modes", lambda python, bubblewrap, *, unsandboxed: [])
    with pytest.raises(OperatorError, match="allow_unsandboxed: true"):
        async with in_process_servers({"environment": environment_server("mbpp")}):
            pass
