"""Gymnasium's own environments, compared with a loop over Gymnasium itself, and actions read from a model's text."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium import spaces

from rollyard.agents.game_agent.app import GameAgent
from rollyard.agents.turn_agent.app import TurnAgent
from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.resources_servers.gymnasium_text.app import Actions, GymnasiumText, InvalidAction
from tests.support.in_process import Script, agent, calls, environment, in_process_servers, says
from tests.support.stacks import read_rows

LAKE = {"env_id": "FrozenLake-v1", "kwargs": {"is_slippery": False}, "success_return": 1.0}
TO_THE_GOAL = ["down", "down", "right", "right", "down", "right"]
EXAMPLES = Path(__file__).parents[3] / "resources_servers/gymnasium_text/data/example.jsonl"


async def play(turns: list[Any], row: Json, kind: Any = GameAgent, **settings: Any) -> tuple[Json, Script]:
    script = Script(turns)
    made = environment(GymnasiumText, **(settings or LAKE))
    servers = {"environment": made, "model": script.model, "agent": agent(kind, max_steps=30)}
    async with in_process_servers(servers) as stack:
        return await stack.run(row), script


def outputs(row: Json) -> list[str]:
    return [item["output"] for item in row["response"]["output"] if item["type"] == "function_call_output"]


@pytest.mark.smoke
async def test_the_reward_is_the_return_and_the_goal_is_a_success() -> None:
    row, script = await play([calls("act", {"action": name}) for name in TO_THE_GOAL], {"seed": 1})
    assert (row["reward"], row["success"], row["gym_steps"], row["gym_terminated"]) == (1.0, True, 6, True)
    assert "[S]FFF" in str(script.requests[0]["input"])
    assert "left, down, right, up" in str(script.requests[0]["input"])
    hole, _ = await play([calls("act", {"action": "down"}), calls("act", {"action": 2})], {"seed": 1})
    assert (hole["reward"], hole["success"], hole["finish_reason"]) == (0.0, False, "done")


async def test_the_example_rows_open_and_taxi_says_what_its_drawing_shows_by_colours() -> None:
    for row in [*read_rows(EXAMPLES), {"seed": 5, "env_id": "Taxi-v4", "kwargs": {}}]:
        _, script = await play([says("x")], row)
        shown = str(script.requests[0]["input"])
        assert "Actions:" in shown and "\x1b" not in shown
    assert "The passenger waits at" in shown


async def test_an_action_outside_the_space_is_words_and_takes_no_step() -> None:
    wrong = [calls("act", {"action": text}) for text in ("fly", "9", "-1", "1.5", "")]
    right = [calls("act", {"action": name}) for name in TO_THE_GOAL]
    row, _ = await play([*wrong, *right], {"seed": 1})
    assert all("Expected one of left, down" in output for output in outputs(row)[:5])
    assert (row["reward"], row["gym_steps"]) == (1.0, 6)


async def test_turn_based_play_reads_the_action_tag() -> None:
    turns = [says(f"I go <action>{name}</action>.") for name in TO_THE_GOAL]
    row, _ = await play([says("hello"), *turns], {"seed": 1}, TurnAgent)
    assert (row["reward"], row["step_rewards"]) == (1.0, [0.0] * 6 + [1.0])


@pytest.mark.parametrize("env_id", ["Taxi-v4", "CliffWalking-v1", "Blackjack-v1", "CartPole-v1", "FrozenLake8x8-v1"])
async def test_the_return_equals_that_of_gymnasium_itself(env_id: str) -> None:
    env = gymnasium.make(env_id)
    env.reset(seed=5)
    total, numbers = 0.0, [0, 1, 1, 0, 1, 0, 0, 1]
    for number in numbers:
        _, reward, terminated, truncated, _ = env.step(number)
        total += float(reward)
        if terminated or truncated:
            break
    env.close()
    turns = [*(calls("act", {"action": number}) for number in numbers), says("I stop.")]
    row, _ = await play(turns, {"seed": 5, "env_id": env_id, "kwargs": {}})
    assert row["reward"] == pytest.approx(total)


async def test_a_continuous_action_is_json_within_its_bounds() -> None:
    turns = [calls("act", {"action": text}) for text in ("[9]", "left", "[0.5]")]
    row, _ = await play([*turns, says("x")], {"seed": 1, "env_id": "Pendulum-v1", "kwargs": {}})
    assert ["outside" in text or "Expected" in text for text in outputs(row)] == [True, True, False]
    assert row["gym_steps"] == 1


async def test_many_episodes_at_once_do_not_mix() -> None:
    def turn(request: Json) -> Any:
        done = sum(item.get("type") == "function_call" for item in request["input"])
        return calls("act", {"action": TO_THE_GOAL[done]})

    servers = {"environment": environment(GymnasiumText, **LAKE), "model": Script(turn).model}
    servers["agent"] = agent(GameAgent)
    async with in_process_servers(servers) as stack:
        rows = await asyncio.gather(*(stack.run({"seed": seed}) for seed in range(100)))
    assert {row["reward"] for row in rows} == {1.0}


@pytest.mark.parametrize(
    "row",
    [{}, {"seed": -1}, *({"seed": 1, **odd} for odd in ({"env_id": "No-v1"}, {"kwargs": {"no": 1}}, {"kwargs": 3}))],
)
async def test_an_unusable_row_is_a_bad_task(row: Json) -> None:
    with pytest.raises(Failure) as raised:
        await play([says("x")], row)
    assert raised.value.kind is FailureKind.BAD_TASK
    with pytest.raises(OperatorError, match=r"env_id 'FrozenLake-v99' cannot be created"):
        await play([says("x")], {"seed": 1}, env_id="FrozenLake-v99")


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
    row, _ = await play([calls("act", {"action": "[2, 1]"}), says("x")], {"seed": 1}, env_id="Levers-v0")
    assert row["reward"] == 3.0
