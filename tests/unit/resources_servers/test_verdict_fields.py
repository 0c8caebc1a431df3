"""The declaration of the fields that explain a reward, in the answers of `/verify`."""

from __future__ import annotations

import importlib

import pytest

from rollyard import Environment, Verdict, VerdictField
from rollyard.records.rewards import VERDICT_FIELDS, declaration
from rollyard.resources_servers.checks import verdict_json
from rollyard.resources_servers.environment import EnvironmentSettings, Verification
from rollyard.testing import play, says


class Silent(Environment[EnvironmentSettings]):
    """Declares nothing."""

    user_template = "{question}"

    async def verify(self, response: Verification) -> Verdict:
        return Verdict(reward=0.0, why="late")


class Declaring(Silent):
    """Declares one field."""

    verdict_fields = (VerdictField(path="why", role="reason"),)


@pytest.mark.parametrize(("kind", "declared"), [(Silent, None), (Declaring, [{"path": "why", "role": "reason"}])])
async def test_a_rollout_contains_the_declaration_if_the_environment_has_one(
    kind: type[Silent], declared: object
) -> None:
    rollout = await play(kind, {"question": "?"}, turns=[says("!")])
    assert rollout.row.get(VERDICT_FIELDS) == declared


GAMES = ("grl_sokoban", "gymnasium_text", "openenv_environment")
ANSWERED = ("gsm8k", "harbor_task", "humaneval", "ifeval", "inspect_task", "math", "mbpp", "verifiers_environment")


@pytest.mark.parametrize("name", [*GAMES, *ANSWERED])
def test_every_environment_declares_its_fields_and_a_game_no_answers(name: str) -> None:
    environment = importlib.import_module(f"rollyard.resources_servers.{name}.app").server.environment
    assert environment.verdict_fields
    fields = verdict_json(Verdict(reward=1.0), declaration(environment.verdict_fields))[VERDICT_FIELDS]
    assert len(str(fields)) < 400, "it is stored in every row"
    assert name not in GAMES or {"expected", "extracted"}.isdisjoint(field.role for field in environment.verdict_fields)
