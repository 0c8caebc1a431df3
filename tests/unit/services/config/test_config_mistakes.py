"""Overrides and references that look right but are not."""

from __future__ import annotations

import pytest

from rollyard.services.errors import OperatorError
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


def test_a_server_may_be_added_with_a_plus() -> None:
    config = load_config("+second_model.responses_api_models.builtin_model.latency_s=0.5")
    assert [spec.name for spec in config.servers][-1] == "second_model"
