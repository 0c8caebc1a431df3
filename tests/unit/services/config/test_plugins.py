from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollyard.services.config.load import RunConfig, load
from rollyard.services.config.plugins import find_folder, load_server
from rollyard.services.errors import OperatorError
from rollyard.services.io.search_path import INSTALLED
from tests.support.fixtures import PLAIN_APP, make_folder, yaml_of


def test_a_folder_is_found_here_first_then_in_the_roots_then_installed(tmp_path: Path) -> None:
    here, root = tmp_path / "here", tmp_path / "root"
    roots = [here, root, INSTALLED]
    family, name = "resources_servers", "grl_sokoban"
    assert find_folder(family, name, roots) == INSTALLED / family / name
    (root / family / name).mkdir(parents=True)
    (root / family / name / "app.py").write_text(PLAIN_APP)
    assert find_folder(family, name, roots) == root / family / name
    (here / family / name).mkdir(parents=True)
    (here / family / name / "app.py").write_text(PLAIN_APP)
    assert find_folder(family, name, roots) == here / family / name


def test_a_folder_of_results_only_does_not_hide_the_installed_server(tmp_path: Path) -> None:
    (tmp_path / "resources_servers/grl_sokoban/data").mkdir(parents=True)
    found = find_folder("resources_servers", "grl_sokoban", [tmp_path, INSTALLED])
    assert found == INSTALLED / "resources_servers/grl_sokoban"


def config_of(root: Path, mine: str) -> RunConfig:
    (root / "a.yaml").write_text(yaml_of(mine, "{speed: 2}"))
    return load(["a.yaml"], [], [root, INSTALLED], {})


def test_a_users_folder_may_import_its_own_files(tmp_path: Path) -> None:
    mine = make_folder(tmp_path, app="from .rules import RULE\n" + PLAIN_APP, rules="RULE = 'no cheating'\n")
    assert config_of(tmp_path, mine).servers[0].name == "world"


def test_a_users_folder_is_no_top_level_module_and_hides_none(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config_of(tmp_path, mine)
    loaded = [name for name in sys.modules if mine in name.split(".")]
    assert loaded and all(name.startswith(f"rollyard_plugins.resources_servers.{mine}") for name in loaded)


def test_a_users_folder_may_import_a_sibling_by_its_bare_name_as_a_script_does(tmp_path: Path) -> None:
    mine = make_folder(tmp_path, app="import rules_of_mine\n" + PLAIN_APP, rules_of_mine="RULE = 1\n")
    assert config_of(tmp_path, mine).servers[0].name == "world"


def test_a_users_folder_may_build_on_an_installed_one(tmp_path: Path) -> None:
    app = (
        "from rollyard.resources_servers.grl_sokoban.game import *\nfrom rollyard.resources_servers.base import tool\n"
        + PLAIN_APP
    )
    assert config_of(tmp_path, make_folder(tmp_path, app=app)).servers[0].name == "world"


def test_an_init_of_a_users_folder_is_run_first(tmp_path: Path) -> None:
    mine = make_folder(tmp_path, app="from . import RULE\n" + PLAIN_APP, __init__="RULE = 1\n")
    assert config_of(tmp_path, mine).servers[0].name == "world"


def test_a_folder_without_its_entrypoint_is_refused_naming_the_file(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"server\.py.*entrypoint"):
        load_server("resources_servers", tmp_path, "server.py")


def test_an_entrypoint_of_another_name_is_used(tmp_path: Path) -> None:
    mine = make_folder(tmp_path, app="raise RuntimeError", main=PLAIN_APP)
    folder = tmp_path / "resources_servers" / mine
    assert load_server("resources_servers", folder, "main.py").__name__ == "Plain"


@pytest.mark.parametrize(
    ("app", "told"),
    [
        ("import a_package_that_nobody_has", "a_package_that_nobody_has"),
        ("def broken(:\n", "SyntaxError"),
        ("raise ValueError('no engine')", "no engine"),
        ("x = 1", "found nothing"),
        ("server = 5", "found 5"),
        ("server = object", "found"),
    ],
)
def test_an_entrypoint_that_gives_no_server_is_refused_naming_file_and_reason(
    tmp_path: Path, app: str, told: str
) -> None:
    mine = make_folder(tmp_path, app=app)
    with pytest.raises(OperatorError) as raised:
        config_of(tmp_path, mine)
    assert mine in str(raised.value) and "app.py" in str(raised.value) and told in str(raised.value)


def test_an_init_that_raises_is_refused_naming_the_folder(tmp_path: Path) -> None:
    mine = make_folder(tmp_path, __init__="raise ValueError('no engine')")
    with pytest.raises(OperatorError) as raised:
        config_of(tmp_path, mine)
    assert mine in str(raised.value) and "no engine" in str(raised.value)
