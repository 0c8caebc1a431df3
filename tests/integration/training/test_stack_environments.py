"""TRL's environments on a running Sokoban: tools as methods, the verdict as the reward, failures without one."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

import rollyard
from rollyard.records.errors import OperatorError, RunError
from rollyard.records.types import Json
from rollyard.responses_api_models.builtin_model.app import plan
from rollyard.training.trl.stack_environments import FAILED, StackEnvironments
from rollyard.training.trl.stack_session import StackSession
from tests.support.background_loop import background_loop
from tests.support.stacks import EXAMPLES, SOKOBAN, read_rows
from tests.support.waiting import deadline_s, short_s

SERVER = "grl_sokoban_resources_server"


@pytest.fixture(scope="module")
def stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[StackSession, Any]]:
    folder = tmp_path_factory.mktemp("stack")
    with background_loop() as run:
        running = rollyard.stack(SOKOBAN, colocate=True, folder=folder)
        run(running.start())
        session = StackSession(running.head_url.removeprefix("http://"))
        yield session, lambda: run(running.stop())
        session.close()
        run(running.stop())


@pytest.fixture
def environments(stack: tuple[StackSession, Any]) -> StackEnvironments:
    return StackEnvironments(stack[0], SERVER, timeout_s=deadline_s())


def example() -> Json:
    return read_rows(EXAMPLES)[0]


def reward(environments: StackEnvironments, environment: Any, text: str = "Done.") -> float | None:
    completion = [{"role": "assistant", "content": text}]
    [found] = environments.reward(completions=[completion], environments=[environment])
    return found


def board(answer: str) -> str:
    return str(json.loads(answer)["observation"])


def opened(environments: StackEnvironments, **changes: Any) -> Any:
    environment = environments.factory()
    environment.reset(prompt=[], row=json.dumps({**example(), **changes}))
    return environment


def test_a_solved_room_has_the_reward_of_the_environment_and_no_other_episode(environments: StackEnvironments) -> None:
    environment, other = opened(environments), opened(environments)
    moves = plan(board(environment.step(actions=[])))
    assert moves and json.loads(environment.step(actions=list(moves)))["done"]
    solved, not_played = reward(environments, environment), reward(environments, other)
    assert solved is not None and not_played is not None and solved > 10 > not_played


def test_the_next_reset_starts_a_new_episode(environments: StackEnvironments) -> None:
    environment = opened(environments)
    first = board(environment.step(actions=[]))
    environment.step(actions=["Up", "Left"])
    environment.reset(row=example())
    assert board(environment.step(actions=[])) == first


def test_what_the_model_got_wrong_is_a_message_and_the_episode_continues(environments: StackEnvironments) -> None:
    environment = opened(environments)
    assert "Sideways" in environment.step(actions=["Sideways"])
    assert "actions" in environment.step(actions=7)
    assert board(environment.step(actions=[]))


def test_a_dataset_without_rows_and_a_server_that_the_stack_lacks_are_refused(
    environments: StackEnvironments, stack: tuple[StackSession, Any]
) -> None:
    with pytest.raises(OperatorError, match="no column `row`"):
        environments.factory().reset(prompt="Solve it.")
    with pytest.raises(RunError, match="no server 'sokoban'"):
        StackEnvironments(stack[0], "sokoban")


def test_a_bad_task_has_no_reward(environments: StackEnvironments) -> None:
    environment = opened(environments, dim_room=[1, 1])
    assert environment.step(actions=[]) == FAILED
    assert reward(environments, environment) is None


def test_an_environment_whose_server_is_gone_has_no_reward(stack: tuple[StackSession, Any]) -> None:
    environments = StackEnvironments(stack[0], SERVER, timeout_s=2 * short_s())
    environment = opened(environments)
    environment.step(actions=["Up"])
    stack[1]()
    assert environment.step(actions=["Up"]) == FAILED
    assert reward(environments, environment) is None
