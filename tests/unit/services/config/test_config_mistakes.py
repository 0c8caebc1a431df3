"""Overrides and references that look right but are not."""

from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.services.config.load import find_config
from tests.support.stacks import load_config


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("policy_modl.responses_api_models.builtin_model.latency_s=0.5", "'policy_model'"),
        ("policy_model.latency_s=0.5", r"policy_model\.responses_api_models\.builtin_model"),
        (
            "grl_sokoban_game_agent.agents.game_agent.model_server.name=grl_sokoban_resources_server",
            "resources_servers.*responses_api_models",
        ),
        ("grl_sokoban_game_agent.agents.game_agent.max_steps=0", "'max_steps' is 0"),
        ("grl_sokoban_game_agent.agents.game_agent.max_steps=-1", "'max_steps' is -1"),
        ("grl_sokoban_game_agent.agents.game_agent.model_timeout_s=0", "'model_timeout_s' is 0"),
        ("grl_sokoban_resources_server.resources_servers.grl_sokoban.max_sessions=0", "'max_sessions' is 0"),
    ],
)
def test_an_invalid_override_is_rejected_with_its_reason(override: str, message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        load_config(override)


def test_a_config_in_the_folder_of_another_family_is_suggested(tmp_path: Path) -> None:
    for path in ("agents/my_name/configs/my_name.yaml", "resources_servers/my_names/configs/my_names.yaml"):
        (tmp_path / path).parent.mkdir(parents=True)
        (tmp_path / path).touch()
    with pytest.raises(OperatorError, match=r"did you mean 'agents/my_name/configs/my_name\.yaml'"):
        find_config("resources_servers/my_name/configs/my_name.yaml", [tmp_path])
