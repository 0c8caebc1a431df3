"""The ORS client of the package openreward on Rollyard's environments."""

from __future__ import annotations

import pytest
from openreward.api.environments.client import AsyncEnvironmentsAPI
from openreward.api.errors import ToolCallError

from tests.support.served import Served, ors, served_once

sokoban = served_once("grl_sokoban", ors, max_steps=3)
gsm8k = served_once("gsm8k", ors)


@pytest.mark.smoke
async def test_the_client_plays_sokoban_to_its_verdict(sokoban: Served) -> None:
    async with AsyncEnvironmentsAPI(sokoban.url, "no key") as api:
        env = api.get("grl_sokoban", base_url=sokoban.url)
        assert await env.list_splits() == ["train"]
        tasks = await env.list_tasks("train")
        assert len(tasks) == await env.num_tasks("train") == 5
        last = await env.get_task_range("train", start=-2)
        assert [task.task_spec for task in last] == [{"split": "train", "index": index} for index in (3, 4)]
        async with env.session(task=tasks[0]) as session:
            assert "Sokoban" in (await session.get_prompt())[0].text
            assert [tool.name for tool in await session.list_tools()] == ["step"]
            with pytest.raises(ToolCallError, match="There is no tool 'fly'"):
                await session.call_tool("fly", {})
            outputs = [await session.call_tool("step", {"actions": ["Up"]}) for _ in range(3)]
    assert [output.finished for output in outputs] == [False, False, True]
    assert outputs[-1].reward == pytest.approx(-0.3)
    await sokoban.until_closed()


async def test_the_terminal_tool_takes_the_models_message(gsm8k: Served) -> None:
    async with AsyncEnvironmentsAPI(gsm8k.url, "no key") as api:
        env = api.get("gsm8k", base_url=gsm8k.url)
        async with env.session(split="train", index=0) as session:
            assert await session.is_assistant_message_final()
            messages = await session.get_messages()
            output = await session.call_terminal_tool("It is \\boxed{72}.")
    assert [message.role for message in messages] == ["system", "user"]
    assert (output.reward, output.finished) == (1.0, True)
    await gsm8k.until_closed()
