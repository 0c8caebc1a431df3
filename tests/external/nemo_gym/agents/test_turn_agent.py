from __future__ import annotations

from typing import Any

import pytest

from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.types import Json
from tests.external.nemo_gym.agents.conftest import FullScript, Gym
from tests.support.in_process import says

ROW: Json = {
    "responses_create_params": {"input": [{"role": "user", "content": "What is the capital of France?"}]},
    "follow_ups": ["Are you sure?", "Say it once more."],
    "expected_answer": "Paris",
}


def answers(*texts: str) -> FullScript:
    return FullScript([[says(text)] for text in texts])


@pytest.mark.parametrize("last", ["It is Paris.", "It is Rome."])
@pytest.mark.parametrize("max_steps", [5, 2])
async def test_both_agents_play_the_same_conversation_for_the_same_reward(gym: Gym, last: str, max_steps: int) -> None:
    texts = ("Paris.", "Yes.", last)
    their_script, our_script = answers(*texts), answers(*texts)
    theirs = await gym.their_rollout("multi_turn_agent", their_script, ROW)
    async with gym.our_agent("multi_turn", our_script, TurnAgent, max_steps=max_steps) as stack:
        ours = await stack.run(ROW)
    if max_steps == 2:
        assert (ours["reward"], ours["finish_reason"], ours["truncated"]) == (0.0, "max_steps", True)
        return
    assert ours["reward"] == theirs["reward"] == (1.0 if "Paris" in last else 0.0)
    assert (ours["terminated"], ours["info"]) == (theirs["terminated"], theirs["info"])
    assert spoken(our_script) == spoken(their_script)


def spoken(script: FullScript) -> list[list[tuple[str, Any]]]:
    return [[(item["role"], _text(item["content"])) for item in request["input"]] for request in script.requests]


def _text(content: Any) -> str:
    return content if isinstance(content, str) else "".join(part["text"] for part in content)


@pytest.mark.parametrize("settings", [{}, {"action_tag": "action"}])
async def test_blackjack_ends_with_its_own_reward(gym: Gym, settings: Json) -> None:
    if settings:
        # The environment looks for the tag itself, so it gets the text without it and stands.
        script = answers("<action>stand</action>")
    else:
        script = answers("<action>hit</action>", "<action>stand</action>")
    async with gym.our_agent("blackjack", script, TurnAgent, **settings) as stack:
        rollout = await stack.run({"responses_create_params": {"input": "Play blackjack."}})
    assert rollout["finish_reason"] == "done"
    assert rollout["reward"] in (1.0, 0.0, -1.0)
    assert rollout["info"]["result"] in ("win", "draw", "loss", "bust")
    assert "Your hand" in script.requests[0]["input"][1]["content"]
