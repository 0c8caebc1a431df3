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


def test_two_folders_may_have_a_package_of_the_same_bare_name(tmp_path: Path) -> None:
    spoken = []
    for word in ("one", "two"):
        app = "from helpers_of_mine.words import WORD\n" + PLAIN_APP + "\nPlain.word = WORD\n"
        folder = tmp_path / "resources_servers" / make_folder(tmp_path, app=app)
        (folder / "helpers_of_mine").mkdir()
        (folder / "helpers_of_mine/words.py").write_text(f"WORD = {word!r}\n")
        spoken.append(vars(load_server("resources_servers", folder, "app.py"))["word"])
    assert spoken == ["one", "two"]
    assert not [name for name in sys.modules if name.startswith("helpers_of_mine")]


def test_folders_of_one_name_in_two_roots_are_two_plug_ins(tmp_path: Path) -> None:
    name = make_folder(tmp_path / "first", app=PLAIN_APP + "\nPlain.word = 'first'\n")
    other = tmp_path / "second" / "resources_servers" / name
    other.mkdir(parents=True)
    (other / "app.py").write_text(PLAIN_APP + "\nPlain.word = 'second'\n")
    folders = (tmp_path / "first/resources_servers" / name, other)
    spoken = [vars(load_server("resources_servers", folder, "app.py"))["word"] for folder in folders]
    assert spoken == ["first", "second"]


def test_plug_ins_of_one_name_in_two_families_are_two_modules(tmp_path: Path) -> None:
    name = make_folder(tmp_path)
    twin = tmp_path / "agents" / name
    twin.mkdir(parents=True)
    (twin / "app.py").write_text(PLAIN_APP)
    kinds = [load_server(family, tmp_path / family / name, "app.py") for family in ("resources_servers", "agents")]
    assert [kind.__module__ for kind in kinds] == [
        f"rollyard_plugins.resources_servers.{name}.app",
        f"rollyard_plugins.agents.{name}.app",
    ]


@pytest.mark.parametrize("name", ["json", "pydantic"])
def test_a_plug_in_named_like_a_package_hides_it_from_no_import(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(f"import {name}\n" + PLAIN_APP + f"\nPlain.package = {name}\n")
    before = sys.modules[name]
    assert vars(load_server("resources_servers", folder, "app.py"))["package"] is before is sys.modules[name]


def test_a_plug_in_that_was_mended_after_a_failed_import_is_read_again_in_full(tmp_path: Path) -> None:
    name = make_folder(tmp_path, app="from .rules_of_mine import RULE, MORE\n" + PLAIN_APP, rules_of_mine="RULE = 1\n")
    folder = tmp_path / "resources_servers" / name
    with pytest.raises(OperatorError, match="MORE"):
        load_server("resources_servers", folder, "app.py")
    (folder / "rules_of_mine.py").write_text("RULE = 1\nMORE = 12345\n")
    assert load_server("resources_servers", folder, "app.py").__name__ == "Plain"


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
