"""Failed rollouts as rows, for collectors of other stacks that stop at a status other than 200."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from rollyard.agents.game_agent.app import GameAgent
from rollyard.records.types import Json
from rollyard.services.http.transport import HttpResponse
from tests.integration.agents.test_agents import ROW, counting
from tests.support.in_process import InProcessServers, Script, calls, says


async def foreign_run(stack: InProcessServers, row: Any) -> HttpResponse:
    return await stack.transport.send("POST", "http://agent:1/run", orjson.dumps(row), {}, 5.0)


@pytest.mark.parametrize(
    ("row", "turn", "kind", "terminal"),
    [
        (ROW, calls("explode", {}), "server_error", False),
        ({**ROW, "level": 13}, says("hm"), "bad_task", True),
        ({"level": 3}, says("hm"), "bad_task", True),
    ],
)
async def test_a_failed_rollout_is_a_row_without_a_reward(row: Json, turn: Json, kind: str, terminal: bool) -> None:
    row = {**row, "_ng_task_index": 4, "reward": 1.0}
    async with counting(Script([[turn]]), GameAgent, failures_as_rows=True) as stack:
        answer = await foreign_run(stack, row)
        assert stack.servers["environment"].sessions == 0
    found = orjson.loads(answer.body)
    assert (answer.status, found["_ng_failure_class"], found["_ng_failure_terminal"]) == (200, kind, terminal)
    assert found["_ng_failure"]["server"] and "reward" not in found and found["_ng_task_index"] == 4


async def test_a_body_that_is_not_a_row_is_still_an_error() -> None:
    async with counting(Script([[says("hm")]]), GameAgent, failures_as_rows=True) as stack:
        assert (await foreign_run(stack, [1])).status == 400


async def test_a_finished_rollout_has_no_failure_class() -> None:
    async with counting(Script([[says("hm")]]), GameAgent, failures_as_rows=True) as stack:
        found = orjson.loads((await foreign_run(stack, ROW)).body)
    assert found["reward"] == 0.0 and "_ng_failure_class" not in found


async def test_without_the_setting_a_failed_rollout_keeps_its_status() -> None:
    async with counting(Script([[calls("explode", {})]])) as stack:
        assert (await foreign_run(stack, ROW)).status == 500
