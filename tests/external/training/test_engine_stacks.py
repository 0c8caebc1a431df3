"""The stacks of this folder's tests."""

from __future__ import annotations

import orjson

from rollyard.training.stack.training_stack import TrainingStack
from tests.support.stacks import AGENT, EXAMPLES, read_rows
from tests.support.waiting import deadline_s


async def test_an_episode_of_a_real_engine_has_recorded_tokens(sokoban_stack: TrainingStack) -> None:
    row = read_rows(EXAMPLES)[0]
    answer = await sokoban_stack.clients.client.post(AGENT, "/run", orjson.dumps(row), deadline_s())
    output = orjson.loads(answer.body)["response"]["output"]
    assert any(item.get("generation_token_ids") for item in output)
