from __future__ import annotations

import sys
from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.services.config.load import load
from rollyard.services.config.plugins import find_folder, load_server, search_roots
from rollyard.services.config.run_config import RunConfig
from tests.support.fixtures import PLAIN_APP, make_folder, server_yaml


def test_the_first_folder_with_code_is_found_here_then_in_the_search_path_then_installed(tmp_path: Path) -> None:
    family, name = "resources_servers", "grl_sokoban"
    search_path = [tmp_path / "here", tmp_path / "other", INSTALLED]
    (tmp_path / "here" / family / name / "data").mkdir(parents=True)
    for root in reversed(search_path):
        if root != INSTALLED:
            (root / family / name).mkdir(parents=True, exist_ok=True)
            (root / family / name / "app.py").write_text(PLAIN_APP)
        assert find_folder(family, name, search_path) == root / family / name


def installed_package(site: Path, value: str, *files: str, name: str = "mine") -> Path:
    """A site-packages folder with a distribution that has the entry point `name = value`, and these files."""
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text("raise RuntimeError('imported')\n")
    info = site / f"{name}_environments-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}-environments\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[rollyard.server_roots]\n{name} = {value}\n")
    return site


@pytest.mark.parametrize(
    ("value", "files"),
    [
        ("mine", ("mine/__init__.py", "mine/resources_servers/coin/app.py")),
        ("bare", ("bare/responses_api_agents/coin/app.py",)),
        ("outer.inner", ("outer/__init__.py", "outer/inner/__init__.py", "outer/inner/agents/mine/app.py")),
    ],
    ids=["package", "without __init__.py", "nested"],
)
def test_an_installed_package_is_searched_after_server_roots_and_before_rollyard_without_being_imported(
    value: str, files: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    site, given = installed_package(tmp_path / "site", value, *files), tmp_path / "given"
    monkeypatch.syspath_prepend(site)
    assert search_roots(tmp_path, [given]) == [tmp_path, given, site / value.replace(".", "/"), INSTALLED]


@pytest.mark.parametrize(
    ("value", "files", "found"),
    [
        ("absent_package", (), "no such package"),
        ("empty_package", ("empty_package/__init__.py",), "its folder is "),
        ("single_module", ("single_module.py",), "no such package"),
        ("half_named.absent", ("half_named/__init__.py", "half_named/agents/a/app.py"), "no such package"),
        ("with_object:server", ("with_object/agents/a/app.py",), "no such package"),
        ("", (), "no such package"),
    ],
)
def test_an_invalid_entry_point_is_named_in_one_line_and_the_others_are_used(
    value: str,
    files: tuple[str, ...],
    found: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    site = installed_package(tmp_path, value, *files)
    monkeypatch.syspath_prepend(installed_package(site, "sound", "sound/agents/b/app.py", name="sound"))
    assert site / "sound" in search_roots(tmp_path / "here")
    (line,) = [record.getMessage() for record in caplog.records]
    assert line.startswith(f"mine-environments: the entry point mine = {value!r} in rollyard.server_roots is ignored")
    assert found in line and "\n" not in line


def config_of(root: Path, mine: str) -> RunConfig:
    (root / "a.yaml").write_text(server_yaml(mine, "{speed: 2}"))
    return load(["a.yaml"], [], [root, INSTALLED], {})


@pytest.mark.parametrize(
    ("imports", "files"),
    [
        ("from .rules import RULE", {"rules": "RULE = 1"}),
        ("import rules_of_mine", {"rules_of_mine": "RULE = 1"}),
        ("from . import RULE", {"__init__": "RULE = 1"}),
        ("from rollyard.resources_servers.grl_sokoban.game import *", {}),
    ],
)
def test_a_users_folder_may_import_its_files_and_rollyard_and_is_no_top_level_module(
    tmp_path: Path, imports: str, files: dict[str, str]
) -> None:
    mine = make_folder(tmp_path, app=f"{imports}\n{PLAIN_APP}", **files)
    assert config_of(tmp_path, mine).servers[0].name == "environment"
    loaded = [name for name in sys.modules if mine in name.split(".")]
    assert loaded and all(name.startswith(f"rollyard_plugins.resources_servers.{mine}") for name in loaded)


def test_two_folders_may_have_a_package_with_the_same_bare_name(tmp_path: Path) -> None:
    words = []
    for word in ("one", "two"):
        app = "from helpers_of_mine.words import WORD\n" + PLAIN_APP + "\nPlain.word = WORD\n"
        folder = tmp_path / "resources_servers" / make_folder(tmp_path, app=app)
        (folder / "helpers_of_mine").mkdir()
        (folder / "helpers_of_mine/words.py").write_text(f"WORD = {word!r}\n")
        words.append(vars(load_server("resources_servers", folder, "app.py"))["word"])
    assert words == ["one", "two"]
    assert not [name for name in sys.modules if name.startswith("helpers_of_mine")]


def test_folders_with_the_same_name_in_two_places_are_two_plugins(tmp_path: Path) -> None:
    name = make_folder(tmp_path / "first", app=PLAIN_APP + "\nPlain.word = 'first'\n")
    other = tmp_path / "second" / "resources_servers" / name
    other.mkdir(parents=True)
    (other / "app.py").write_text(PLAIN_APP + "\nPlain.word = 'second'\n")
    folders = (tmp_path / "first/resources_servers" / name, other)
    words = [vars(load_server("resources_servers", folder, "app.py"))["word"] for folder in folders]
    assert words == ["first", "second"]


@pytest.mark.parametrize("name", ["json", "pydantic"])
def test_a_plugin_named_like_a_package_does_not_hide_the_package(tmp_path: Path, name: str) -> None:
    folder = tmp_path / "resources_servers" / name
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(f"import {name}\n" + PLAIN_APP + f"\nPlain.package = {name}\n")
    before = sys.modules[name]
    assert vars(load_server("resources_servers", folder, "app.py"))["package"] is before is sys.modules[name]


def test_a_plugin_that_was_fixed_after_a_failed_import_is_fully_reloaded(tmp_path: Path) -> None:
    name = make_folder(tmp_path, app="from .rules_of_mine import RULE, MORE\n" + PLAIN_APP, rules_of_mine="RULE = 1\n")
    folder = tmp_path / "resources_servers" / name
    with pytest.raises(OperatorError, match="MORE"):
        load_server("resources_servers", folder, "app.py")
    (folder / "rules_of_mine.py").write_text("RULE = 1\nMORE = 12345\n")
    assert load_server("resources_servers", folder, "app.py").__name__ == "Plain"


@pytest.mark.parametrize(
    ("app", "reason"),
    [
        ("import a_missing_package", "a_missing_package"),
        ("def broken(:\n", "SyntaxError"),
        ("raise ValueError('no engine')", "ValueError: no engine"),
        ("x = 1", "found nothing"),
        ("server = 5", "found 5"),
        ("server = object", "found"),
    ],
)
def test_an_entrypoint_without_a_server_is_rejected_with_file_and_reason(tmp_path: Path, app: str, reason: str) -> None:
    mine = make_folder(tmp_path, app=app)
    with pytest.raises(OperatorError) as raised:
        config_of(tmp_path, mine)
    assert mine in str(raised.value) and "app.py" in str(raised.value) and reason in str(raised.value)
    with pytest.raises(OperatorError, match=r"server\.py.*entrypoint"):
        load_server("resources_servers", tmp_path / "resources_servers" / mine, "server.py")
