"""openai-agents owns the top-level package `agents`: both projects work together, installed in either order."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.external.packages.conftest import OPENAI_AGENTS, Built, Fresh
from tests.external.packages.installation import Installation

BOTH = (
    "import agents, rollyard, rollyard.agents.base as base\n"
    "print(agents.Agent.__module__.partition('.')[0], base.Agent.__module__)"
)
ONLY_AGENTS = "import agents; print(agents.Agent.__module__.partition('.')[0])"
FOLDERS = {"rollyard": "rollyard", OPENAI_AGENTS: "openai_agents"}


def check_both(environment: Installation, cwd: Path) -> None:
    assert environment.prints(BOTH, cwd=cwd) == "agents rollyard.agents.base"
    assert environment.run("ng_status", "--version", cwd=cwd).startswith("ng_status (rollyard")


@pytest.mark.parametrize("first", FOLDERS)
def test_installing_or_removing_one_does_not_change_the_other(
    first: str, fresh: Fresh, built: Built, tmp_path: Path
) -> None:
    (second,) = FOLDERS.keys() - {first}
    requirements = {"rollyard": str(built.wheel), OPENAI_AGENTS: OPENAI_AGENTS}
    environment = fresh()
    environment.install(requirements[first])
    before = environment.files(FOLDERS[first])
    environment.install(requirements[second])
    after = environment.files(FOLDERS[second])
    assert not before.keys() & after.keys()
    assert None not in before.values() and environment.files(FOLDERS[first]) == before
    check_both(environment, tmp_path)
    environment.uninstall(first)
    assert environment.files(FOLDERS[second]) == after
    if second == "rollyard":
        assert environment.run("ng_run", "--help", cwd=tmp_path)
    else:
        assert environment.prints(ONLY_AGENTS, cwd=tmp_path) == "agents"


def test_every_python_imports_both(installed: Callable[[str], Installation], version: str, tmp_path: Path) -> None:
    check_both(installed(version), tmp_path)
