"""openai-agents owns the top-level name `agents`. Neither project harms the other, in any order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.external.packages.conftest import OPENAI_AGENTS, Built, Fresh
from tests.external.packages.installation import Installation

BOTH = (
    "import agents, rollyard, rollyard.agents.base as ours\n"
    "print(agents.Agent.__module__.partition('.')[0], ours.Agent.__module__)"
)
THEIRS = "import agents; print(agents.Agent.__module__.partition('.')[0])"
PLACES = {"rollyard": "rollyard", OPENAI_AGENTS: "openai_agents"}


def check_both(environment: Installation, cwd: Path) -> None:
    assert environment.prints(BOTH, cwd=cwd) == "agents rollyard.agents.base"
    assert environment.run("ng_status", "--version", cwd=cwd).startswith("ng_status (rollyard")


@pytest.mark.parametrize("first", PLACES)
def test_each_survives_the_others_installation_and_removal(
    first: str, fresh: Fresh, built: Built, tmp_path: Path
) -> None:
    (second,) = PLACES.keys() - {first}
    what = {"rollyard": str(built.wheel), OPENAI_AGENTS: OPENAI_AGENTS}
    environment = fresh()
    environment.install(what[first])
    before = environment.files(PLACES[first])
    environment.install(what[second])
    after = environment.files(PLACES[second])
    assert not before.keys() & after.keys()
    assert None not in before.values() and environment.files(PLACES[first]) == before
    check_both(environment, tmp_path)
    environment.uninstall(first)
    assert environment.files(PLACES[second]) == after
    if second == "rollyard":
        assert environment.run("ng_run", "--help", cwd=tmp_path)
    else:
        assert environment.prints(THEIRS, cwd=tmp_path) == "agents"


def test_every_python_has_both(installed: Callable[[str], Installation], version: str, tmp_path: Path) -> None:
    check_both(installed(version), tmp_path)
