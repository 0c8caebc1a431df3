"""Actions of Gymnasium's spaces, read from the text of a model."""

from __future__ import annotations

from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from rollyard.agents.game_agent.app import GameAgent
from rollyard.resources_servers.gymnasium_text.app import Actions, GymnasiumText, InvalidAction
from tests.support.in_process import Script, agent, calls, environment, in_process_servers, says

PARTS = spaces.Dict({"move": spaces.Discrete(3), "say": spaces.Text(5)})
PAIR = spaces.Tuple((spaces.Discrete(2), spaces.Text(5)))


class Levers(gymnasium.Env[int, Any]):  # type: ignore[misc] # only installed in .venv-envs
    """Two levers; the reward is the sum of their positions."""

    action_space = spaces.MultiDiscrete([3, 3])
    observation_space = spaces.Discrete(1)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[int, dict[str, Any]]:
        super().reset(seed=seed)
        return 0, {}

    def step(self, action: Any) -> tuple[int, float, bool, bool, dict[str, Any]]:
        return 0, float(action.sum()), True, False, {}


gymnasium.register("Levers-v0", entry_point=Levers)


@pytest.mark.parametrize(
    ("space", "text", "action"),
    [
        (spaces.MultiDiscrete([3, 3]), "[1, 2]", [1, 2]),
        (spaces.MultiBinary(2), "[1, 0]", [1, 0]),
        (spaces.Discrete(3, start=-1), "-1", -1),
        (PARTS, '{"say": "hi", "move": 2}', {"move": 2, "say": "hi"}),
        (PAIR, '[1, "hi"]', (1, "hi")),
        (spaces.Dict({"inner": PARTS}), '{"inner": {"say": "hi", "move": 2}}', {"inner": {"move": 2, "say": "hi"}}),
    ],
)
def test_json_is_read_as_an_element_of_the_space(space: Any, text: str, action: Any) -> None:
    found = Actions(space, ()).parse(text)
    assert (found.tolist() if hasattr(found, "tolist") else found) == action
    assert space.contains(found)


GRID = spaces.MultiDiscrete([3, 3])
TEXTS = ['{"move": 2}', '{"move": 2, "say": "hi", "more": 1}', '{"move": 2.5, "say": "hi"}', "[1]"]
OUTSIDE = [
    *((GRID, text) for text in ("[1.7, 2]", "[true, 1]", "[3, 0]", "[1]")),
    *((PARTS, text) for text in TEXTS),
    *((PAIR, '[1, "hi", 3]'), (PAIR, "{}"), (spaces.Box(-1, 1, (2,)), "[NaN, 0]")),
]


@pytest.mark.parametrize(("space", "text"), OUTSIDE)
def test_json_that_is_no_element_of_the_space_is_words_for_the_model(space: Any, text: str) -> None:
    with pytest.raises(InvalidAction, match="action space"):
        Actions(space, ()).parse(text)


async def test_an_environment_with_several_discrete_actions_is_played() -> None:
    script = Script([calls("act", {"action": "[2, 1]"}), says("x")])
    made = environment(GymnasiumText, env_id="Levers-v0")
    async with in_process_servers({"environment": made, "model": script.model, "agent": agent(GameAgent)}) as stack:
        assert (await stack.run({"seed": 1}))["reward"] == 3.0
