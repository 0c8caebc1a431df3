"""An editable install of a clone named like the project, together with openai-agents."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.external.packages.building import copy_checkout
from tests.external.packages.conftest import OPENAI_AGENTS, Fresh
from tests.external.packages.installation import Installation
from tests.external.packages.isolation import version_in_isolation
from tests.external.packages.runs import play_sokoban
from tests.external.packages.test_openai_agents import check_both

INSTALLERS = ("uv, after openai-agents", "pip, before openai-agents")


@pytest.fixture(scope="module", params=INSTALLERS)
def editable(
    request: pytest.FixtureRequest, fresh: Fresh, tmp_path_factory: pytest.TempPathFactory
) -> tuple[Installation, Path]:
    clone = copy_checkout(tmp_path_factory.mktemp("projects") / "rollyard")
    environment = fresh()
    if request.param == INSTALLERS[0]:
        environment.install(OPENAI_AGENTS)
        environment.install("-e", clone)
    else:
        environment.install("-r", clone / "pyproject.toml")  # uv installs the dependencies faster
        environment.pip("install", "--quiet", "-e", clone)
        environment.install(OPENAI_AGENTS)
    return environment, clone


@pytest.mark.parametrize("place", [".", ".."])
def test_both_projects_work_inside_and_next_to_the_clone(editable: tuple[Installation, Path], place: str) -> None:
    environment, clone = editable
    check_both(environment, (clone / place).resolve())


def test_the_code_of_the_clone_is_imported_in_any_folder(editable: tuple[Installation, Path], tmp_path: Path) -> None:
    environment, clone = editable
    imported = environment.prints("import rollyard.records.errors as errors; print(errors.__file__)", cwd=tmp_path)
    assert Path(imported).resolve() == clone / "records/errors.py"


def test_a_run_starts_in_the_folder_that_contains_the_clone(editable: tuple[Installation, Path]) -> None:
    environment, clone = editable
    play_sokoban(environment, clone.parent)


@pytest.mark.parametrize("editable", INSTALLERS[:1], indirect=True)
def test_packages_of_an_isolated_server_take_precedence(editable: tuple[Installation, Path], tmp_path: Path) -> None:
    assert version_in_isolation(editable[0], tmp_path) == "2.0"


def test_uninstalling_leaves_the_clone_and_openai_agents(editable: tuple[Installation, Path]) -> None:
    environment, clone = editable
    files = environment.files("openai_agents")
    environment.uninstall("rollyard")
    assert environment.files("openai_agents") == files and None not in files.values()
    assert (clone / "records/errors.py").is_file()
