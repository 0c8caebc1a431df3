from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.services.config.load import find_config, load
from rollyard.services.config.overrides import parse_overrides
from tests.support.fixtures import load_text, make_folder, server_yaml
from tests.support.stacks import load_config


def settings_of(root: Path, paths: list[str], *overrides: str) -> tuple[int, str]:
    settings = load(paths, parse_overrides(overrides), [root, INSTALLED], {}).servers[0].settings.model_dump()
    return settings["speed"], settings["title"]


def error_message(root: Path, text: str, *overrides: str) -> str:
    with pytest.raises(OperatorError) as raised:
        load_text(root, text, *overrides)
    return str(raised.value)


def test_later_files_override_single_settings_of_earlier_ones_then_env_yaml_then_the_command_line(
    tmp_path: Path,
) -> None:
    mine = make_folder(tmp_path)
    for name, settings in (("a", "{speed: 1, title: a}"), ("b", "{speed: 2}"), ("env", "{speed: 3}")):
        (tmp_path / f"{name}.yaml").write_text(server_yaml(mine, settings))
    setting = f"++environment.resources_servers.{mine}.speed=4"
    assert settings_of(tmp_path, ["a.yaml", "b.yaml"], setting) == (4, "a")
    assert settings_of(tmp_path, ["a.yaml", "b.yaml"]) == (3, "a")
    (tmp_path / "env.yaml").unlink()
    assert settings_of(tmp_path, ["a.yaml", "b.yaml"]) == (2, "a")
    assert settings_of(tmp_path, ["b.yaml", "a.yaml"]) == (1, "a")


@pytest.mark.parametrize(
    ("text", "title", "overrides", "environ", "found"),
    [
        ("name: x\n", "${name}-1", [], {}, "x-1"),
        ("", "${name}", [], {"name": "x"}, "x"),
        ("name: config\n", "${name}", [], {"name": "env"}, "config"),
        ("first: ${second}\nsecond: ${third}\n", "${first}", [], {"third": "x"}, "x"),
        ("", "${name}", ["+name=org/model:1"], {}, "org/model:1"),
        ("", "costs \\${x}", [], {}, "costs ${x}"),
    ],
    ids=["config", "environment", "config first", "references of references", "command line", "escaped"],
)
def test_a_reference_is_resolved(
    tmp_path: Path, text: str, title: str, overrides: list[str], environ: dict[str, str], found: str
) -> None:
    text += server_yaml(make_folder(tmp_path), f"{{title: '{title}'}}")
    assert load_text(tmp_path, text, *overrides, environ=environ).servers[0].settings.model_dump()["title"] == found


def test_an_unresolved_reference_is_rejected_with_the_setting_and_where_to_define_it(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    message = error_message(tmp_path, server_yaml(mine, "{title: '${name_x}'}"))
    assert f"environment.resources_servers.{mine}.title" in message
    assert "export name_x=" in message and "--name-x ..." in message and "env.yaml" in message


@pytest.mark.parametrize("family", ["agents", "responses_api_agents"])
@pytest.mark.parametrize("folder", ["agents", "responses_api_agents"])
def test_both_names_of_the_agents_family_are_the_same_family(tmp_path: Path, family: str, folder: str) -> None:
    mine = make_folder(tmp_path, folder)
    (spec,) = load_text(tmp_path, server_yaml(mine, family=family)).servers
    assert (spec.family, spec.folder) == ("agents", tmp_path / folder / mine)


def test_nested_settings_are_typed(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    (spec,) = load_text(tmp_path, server_yaml(mine, "{engine: {threads: 4}, peer: {name: environment}}")).servers
    assert spec.settings.model_dump()["engine"] == {"threads": 4}
    assert "engine.threads" in error_message(tmp_path, server_yaml(mine, "{engine: {threads: many}}"))


def test_an_unknown_config_file_is_rejected_with_the_nearest_name_and_the_searched_folders(tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as raised:
        load(["configs/sokoban_bultin.yaml"], [], [tmp_path, INSTALLED], {})
    message = str(raised.value)
    assert "'configs/sokoban_builtin.yaml'" in message and str(tmp_path) in message


def test_a_server_may_be_defined_on_the_command_line(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config = load_text(tmp_path, server_yaml(mine), f"+second={{resources_servers: {{{mine}: {{speed: 9}}}}}}")
    assert [spec.name for spec in config.servers] == ["environment", "second"]


def test_a_run_without_config_paths_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no config given"):
        load([], [], [tmp_path], {})


@pytest.mark.parametrize(
    "content", [b"environment: {a: [1\n", b"a: 1\na: 2\n", b"- a\n- b\n", b"a: \x00\n", b"a: \xff\xfe"]
)
def test_a_file_that_is_not_a_yaml_mapping_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.yaml").write_bytes(content)
    with pytest.raises(OperatorError, match=str(tmp_path / "config.yaml")):
        load(["config.yaml"], [], [tmp_path], {})


FOLDER = "a_folder"


@pytest.mark.parametrize(
    ("text", "overrides", "named"),
    [
        (server_yaml(FOLDER, "{sped: 3}"), [], ["environment", "'sped'", "'speed'"]),
        (server_yaml(FOLDER, family="resource_servers"), [], ["environment", "'resources_servers'"]),
        (server_yaml("grl_sokobann"), [], ["'grl_sokoban'", str(INSTALLED)]),
        (server_yaml(FOLDER, "{peer: {name: enviroment}}"), [], ["environment.peer", "'enviroment'", "'environment'"]),
        ("name: x\n" + server_yaml(FOLDER), ["+nmae=y"], ["'nmae'", "'name'"]),
        (f"environment: {{resources_servers: {{{FOLDER}: {{}}, other: {{}}}}}}", [], ["environment.resources_servers"]),
        (f"environment: {{resources_servers: {{{FOLDER}: {{}}}}, agents: {{x: {{}}}}}}", [], ["environment"]),
        ("name: x\n", [], ["no server", "name", "resources_servers"]),
        ("", [], ["no server"]),
        *((server_yaml(FOLDER, settings), [], ["environment"]) for settings in ("[1, 2]", "text")),
        *((server_yaml(FOLDER, settings), [], ["environment"]) for settings in ("{replicas: 0}", "{port: 99999}")),
    ],
)
def test_an_invalid_config_is_rejected_with_its_place_and_the_nearest_name(
    tmp_path: Path, text: str, overrides: list[str], named: list[str]
) -> None:
    message = error_message(tmp_path, text.replace(FOLDER, make_folder(tmp_path)), *overrides)
    assert [name for name in named if name not in message] == []


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
