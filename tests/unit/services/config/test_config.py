from __future__ import annotations

from pathlib import Path

import pytest

from rollyard.records.errors import OperatorError
from rollyard.records.search_path import INSTALLED
from rollyard.services.config.load import load
from rollyard.services.config.overrides import parse_overrides
from tests.support.fixtures import load_text, make_folder, server_yaml


def speed_of(root: Path, paths: list[str], *overrides: str) -> int:
    config = load(paths, parse_overrides(overrides), [root, INSTALLED], {})
    return int(config.servers[0].settings.model_dump()["speed"])


def error_message(root: Path, text: str, *overrides: str) -> str:
    with pytest.raises(OperatorError) as raised:
        load_text(root, text, *overrides)
    return str(raised.value)


def test_later_files_override_earlier_ones_then_env_yaml_then_the_command_line(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    for name, speed in (("a.yaml", 1), ("b.yaml", 2), ("env.yaml", 3)):
        (tmp_path / name).write_text(server_yaml(mine, f"{{speed: {speed}}}"))
    setting = f"++environment.resources_servers.{mine}.speed=4"
    assert speed_of(tmp_path, ["a.yaml", "b.yaml"], setting) == 4
    assert speed_of(tmp_path, ["a.yaml", "b.yaml"]) == 3
    (tmp_path / "env.yaml").unlink()
    assert speed_of(tmp_path, ["a.yaml", "b.yaml"]) == 2
    assert speed_of(tmp_path, ["b.yaml", "a.yaml"]) == 1


def test_config_files_are_merged_setting_by_setting(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    (tmp_path / "a.yaml").write_text(server_yaml(mine, "{speed: 5, title: a}"))
    (tmp_path / "b.yaml").write_text(server_yaml(mine, "{title: b}"))
    config = load(["a.yaml", "b.yaml"], [], [tmp_path, INSTALLED], {})
    settings = config.servers[0].settings.model_dump()
    assert (settings["speed"], settings["title"]) == (5, "b")


def test_a_reference_is_resolved_from_the_config(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config = load_text(tmp_path, "name: x\n" + server_yaml(mine, "{title: '${name}-1'}"))
    assert config.servers[0].settings.model_dump()["title"] == "x-1"


def test_a_reference_falls_back_to_the_environment_variable(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config = load_text(
        tmp_path, server_yaml(mine, "{title: '${name}', speed: '${n}'}"), environ={"name": "x", "n": "7"}
    )
    settings = config.servers[0].settings.model_dump()
    assert (settings["title"], settings["speed"]) == ("x", 7)


def test_the_config_takes_precedence_over_environment_variables(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config = load_text(tmp_path, "name: config\n" + server_yaml(mine, "{title: '${name}'}"), environ={"name": "env"})
    assert config.servers[0].settings.model_dump()["title"] == "config"


def test_references_may_refer_to_references(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    text = "first: ${second}\nsecond: ${third}\n" + server_yaml(mine, "{title: '${first}'}")
    assert load_text(tmp_path, text, environ={"third": "x"}).servers[0].settings.model_dump()["title"] == "x"


def test_an_escaped_reference_is_literal_text(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    (spec,) = load_text(tmp_path, server_yaml(mine, "{title: 'costs \\${x}'}")).servers
    assert spec.settings.model_dump()["title"] == "costs ${x}"


def test_an_unresolved_reference_is_rejected_with_the_setting_and_where_to_define_it(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    message = error_message(tmp_path, server_yaml(mine, "{title: '${name_x}'}"))
    assert f"environment.resources_servers.{mine}.title" in message
    assert "export name_x=" in message and "--name-x ..." in message and "env.yaml" in message


def test_a_reference_may_be_defined_on_the_command_line(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config = load_text(tmp_path, server_yaml(mine, "{title: '${name}'}"), "+name=org/model:1")
    assert config.servers[0].settings.model_dump()["title"] == "org/model:1"


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


def test_an_unknown_setting_is_rejected_with_the_server_and_the_nearest_name(tmp_path: Path) -> None:
    message = error_message(tmp_path, server_yaml(make_folder(tmp_path), "{sped: 3}"))
    assert "environment" in message and "'sped'" in message and "'speed'" in message


def test_an_unknown_family_is_rejected_with_the_nearest_name(tmp_path: Path) -> None:
    message = error_message(tmp_path, server_yaml(make_folder(tmp_path), family="resource_servers"))
    assert "environment" in message and "resource_servers" in message and "'resources_servers'" in message


def test_an_unknown_implementation_is_rejected_with_the_nearest_name_and_the_searched_folders(tmp_path: Path) -> None:
    message = error_message(tmp_path, server_yaml("grl_sokobann"))
    assert "'grl_sokoban'" in message and str(tmp_path) in message and str(INSTALLED) in message


def test_an_unknown_config_file_is_rejected_with_the_nearest_name_and_the_searched_folders(tmp_path: Path) -> None:
    with pytest.raises(OperatorError) as raised:
        load(["configs/sokoban_bultin.yaml"], [], [tmp_path, INSTALLED], {})
    message = str(raised.value)
    assert "'configs/sokoban_builtin.yaml'" in message and str(tmp_path) in message


@pytest.mark.parametrize("reference", ["{type: resources_servers, name: enviroment}", "{name: enviroment}"])
def test_a_reference_to_an_unknown_server_is_rejected_with_the_nearest_name(tmp_path: Path, reference: str) -> None:
    message = error_message(tmp_path, server_yaml(make_folder(tmp_path), f"{{peer: {reference}}}"))
    assert "environment.peer" in message and "'enviroment'" in message and "'environment'" in message


def test_an_unused_top_level_key_on_the_command_line_is_rejected(tmp_path: Path) -> None:
    message = error_message(
        tmp_path, "name: x\n" + server_yaml(make_folder(tmp_path)), "+enviroment.resources_servers=1", "+nmae=y"
    )
    assert "'nmae'" in message and "'name'" in message


def test_a_secret_in_a_rejected_override_is_not_printed(tmp_path: Path) -> None:
    message = error_message(tmp_path, server_yaml(make_folder(tmp_path)), "+polcy_api_key=sk-1234")
    assert "polcy_api_key" in message and "sk-1234" not in message


def test_a_server_may_be_defined_on_the_command_line(tmp_path: Path) -> None:
    mine = make_folder(tmp_path)
    config = load_text(tmp_path, server_yaml(mine), f"+second={{resources_servers: {{{mine}: {{speed: 9}}}}}}")
    assert [spec.name for spec in config.servers] == ["environment", "second"]


def test_two_implementations_under_one_family_are_rejected(tmp_path: Path) -> None:
    first, second = make_folder(tmp_path), make_folder(tmp_path)
    message = error_message(tmp_path, f"environment:\n  resources_servers:\n    {first}: {{}}\n    {second}: {{}}\n")
    assert "environment.resources_servers" in message and "one implementation" in message


def test_two_families_under_one_name_are_rejected(tmp_path: Path) -> None:
    first, second = make_folder(tmp_path), make_folder(tmp_path, "agents")
    message = error_message(
        tmp_path, f"environment:\n  resources_servers: {{{first}: {{}}}}\n  agents: {{{second}: {{}}}}\n"
    )
    assert "environment" in message


def test_a_config_without_a_server_is_rejected_with_its_keys(tmp_path: Path) -> None:
    message = error_message(tmp_path, "name: x\n")
    assert "no server" in message and "name" in message and "resources_servers" in message


def test_a_run_without_config_paths_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="no config given"):
        load([], [], [tmp_path], {})


def test_an_empty_config_is_rejected(tmp_path: Path) -> None:
    assert "no server" in error_message(tmp_path, "")


@pytest.mark.parametrize("text", ["environment: {a: [1\n", "a: 1\na: 2\n", "- a\n- b\n", "a: \x00\n"])
def test_a_file_that_is_not_a_yaml_mapping_is_named(tmp_path: Path, text: str) -> None:
    assert str(tmp_path / "config.yaml") in error_message(tmp_path, text)


def test_a_file_that_is_not_utf_8_is_named(tmp_path: Path) -> None:
    (tmp_path / "config.yaml").write_bytes(b"a: \xff\xfe")
    with pytest.raises(OperatorError, match=r"config\.yaml"):
        load(["config.yaml"], [], [tmp_path], {})


@pytest.mark.parametrize("settings", ["[1, 2]", "5", "text"])
def test_settings_that_are_not_a_mapping_are_rejected(tmp_path: Path, settings: str) -> None:
    assert "environment" in error_message(tmp_path, server_yaml(make_folder(tmp_path), settings))


@pytest.mark.parametrize("settings", ["{replicas: 0}", "{replicas: -1}", "{port: 99999}", "{port: -1}"])
def test_a_number_out_of_range_is_rejected_at_load(tmp_path: Path, settings: str) -> None:
    assert "environment" in error_message(tmp_path, server_yaml(make_folder(tmp_path), settings))
