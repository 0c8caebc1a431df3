"""The scripted model of the compatibility table: every row of every environment has one answer."""

from __future__ import annotations

import pytest

from tests.external.nemo_gym.compatibility.catalog import Environment, environments
from tests.external.nemo_gym.compatibility.scripted_model import Items, ScriptedModel, message, model_turns
from tests.external.nemo_gym.compatibility.scripts import SCRIPTS, script_of

PLAYED = [environment for environment in environments() if environment.rows_path is not None]


@pytest.mark.parametrize("environment", PLAYED, ids=lambda environment: environment.name)
def test_every_row_is_answered_the_same_in_two_runs_and_on_every_turn(environment: Environment) -> None:
    for row in environment.rows():
        for turn in range(3):
            history: Items = [message("moved"), {"role": "user", "content": "go on"}] * turn
            first, second = (_model(environment).items(_request(row, history)) for _ in range(2))
            assert first == second
            assert first


def test_every_script_belongs_to_an_environment_of_the_wheel() -> None:
    known = {environment.name for environment in PLAYED} | {environment.folder.name for environment in PLAYED}
    assert set(SCRIPTS) <= known


def test_a_turn_of_several_items_counts_once() -> None:
    call = {"type": "function_call"}
    assert model_turns([call, call, {"type": "function_call_output"}, message("done")]) == 2


def _model(environment: Environment) -> ScriptedModel:
    return ScriptedModel(environment.rows(), script_of(environment.name, environment.folder.name))


def _request(row: dict[str, object], history: Items) -> dict[str, object]:
    parameters = row["responses_create_params"]
    assert isinstance(parameters, dict)
    own = parameters["input"]
    return {"input": [*([{"role": "user", "content": own}] if isinstance(own, str) else own), *history]}
