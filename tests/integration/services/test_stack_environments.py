"""TRL's environments on a running stack: what an episode is worth, and that a failure never becomes a reward."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from rollyard.training.trl.stack_environments import FAILED, StackEnvironments
from rollyard.training.trl.stack_session import StackSession
from tests.support.background_loop import background_loop
from tests.support.fixtures import make_folder
from tests.support.stacks import colocated, load_config

GUESS = '''
from rollyard import Environment, Verdict, serve, tool


class Guess(Environment):
    """Ends with the right number; a text that names it is worth half."""

    right = False

    @tool
    async def guess(self, number: int) -> dict:
        """Guess a number."""
        if number < 0:
            raise RuntimeError("the game is broken")
        self.right = number == self.task["number"]
        return {"done": self.right}

    async def verify(self, response):
        named = str(self.task["number"]) in response.text
        return Verdict(reward=1.0 if self.right else 0.5 * named, mask_sample=self.task["number"] > 9)


server = serve(Guess)
'''


@pytest.fixture(scope="module")
def environments(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StackEnvironments]:
    folder = tmp_path_factory.mktemp("stack")
    tree = {
        "policy_model": {"responses_api_models": {"builtin_model": {"entrypoint": "app.py", "model": "builtin"}}},
        "guess": {"resources_servers": {make_folder(folder, app=GUESS): {"entrypoint": "app.py"}}},
    }
    with background_loop() as run:
        started = colocated(load_config(config=tree, roots=[folder], tmp_path=folder), folder)
        stack = run(started.__aenter__())
        session = StackSession(stack.head_url.removeprefix("http://"))
        yield StackEnvironments(session, "guess")
        session.close()
        run(started.__aexit__(None, None, None))


def opened(environments: StackEnvironments, number: int = 3) -> Any:
    environment: Any = environments.factory()
    row = {"number": number, "responses_create_params": {"input": "Guess."}}
    assert environment.reset(row=row) is None
    return environment


def reward(environments: StackEnvironments, environment: Any, text: str = "") -> float | None:
    [found] = environments.reward(completions=[text], environments=[environment])
    return found


def test_the_verdict_is_on_the_whole_completion(environments: StackEnvironments) -> None:
    environment = opened(environments)
    assert environment.guess(number=1) == '{"done":false}'
    assert reward(environments, environment, "It is 3.") == 0.5


def test_an_episode_that_a_tool_ends_has_its_verdict(environments: StackEnvironments) -> None:
    environment = opened(environments)
    environment.guess(number=3)
    assert "over" in environment.guess(number=1)
    assert reward(environments, environment) == 1.0


def test_a_failure_ends_the_episode_without_a_reward_and_the_next_one_is_sound(environments: StackEnvironments) -> None:
    environment = opened(environments)
    assert environment.guess(number=-1) == environment.guess(number=3) == FAILED
    assert reward(environments, environment) is None
    environment.reset(row={"number": 1, "responses_create_params": {"input": "Guess."}})
    assert reward(environments, environment, "It is 1.") == 0.5


def test_a_masked_episode_has_no_reward(environments: StackEnvironments) -> None:
    assert reward(environments, opened(environments, number=10), "It is 10.") is None
