"""How entries of NeMo Gym's configs become servers."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.nemo_gym import with_environment_servers
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.run_config import RunConfig, ServerSpec
from tests.support.fixtures import PLAIN_APP
from tests.support.foreign_folders import entry, make_root, program_entry

MODEL = entry("responses_api_models", "builtin_model")
RESOURCES = {"type": "resources_servers", "name": "counter"}
POLICY = {"type": "responses_api_models", "name": "policy_model"}


def load_tree(root: Path, tree: Json, *overrides: str) -> RunConfig:
    return load([tree], parse_overrides(overrides), [root, INSTALLED], {})


def server(config: RunConfig, name: str) -> ServerSpec:
    return next(spec for spec in config.servers if spec.name == name)


def agent_of(root: Path, implementation: str, **settings: Any) -> RunConfig:
    make_root(root)
    agent = entry("responses_api_agents", implementation, resources_server=RESOURCES, model_server=POLICY, **settings)
    return load_tree(root, {"counter": program_entry(), "policy_model": MODEL, "agent": agent})


def python_of(config: RunConfig) -> Path | None:
    assert config.servers[0].program is not None
    return config.servers[0].program.python


def test_a_folder_of_nemo_gym_becomes_a_program_with_all_settings_passed_on(tmp_path: Path) -> None:
    folder = make_root(tmp_path)
    config = load_tree(tmp_path, {"counter": program_entry(odd={"x": 1}, nothing=None)})
    (spec,) = config.servers
    assert python_of(config) == Path(sys.executable)
    assert (spec.folder, spec.raw["odd"], spec.raw["nothing"]) == (folder.resolve(), {"x": 1}, None)


def test_a_config_may_list_further_configs(tmp_path: Path) -> None:
    folder = make_root(tmp_path / "gym")
    (folder / "configs" / "counter.yaml").write_text("counter: {resources_servers: {counter: {entrypoint: app.py}}}\n")
    benchmark = tmp_path / "gym" / "benchmarks" / "one" / "config.yaml"
    benchmark.parent.mkdir(parents=True)
    benchmark.write_text("config_paths: [resources_servers/counter/configs/counter.yaml]\n")
    config = load([str(benchmark)], parse_overrides([f"+python={sys.executable}"]), [tmp_path, INSTALLED], {})
    assert [spec.name for spec in config.servers] == ["counter"]


def test_an_installed_server_runs_in_its_environment_which_the_command_line_may_name(tmp_path: Path) -> None:
    site = tmp_path / "env" / "lib" / "python3.12" / "site-packages"
    config_file = make_root(site) / "configs" / "counter.yaml"
    config_file.write_text("counter: {resources_servers: {counter: {entrypoint: app.py}}}\n")
    python = tmp_path / "env" / "bin" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    tree = {"counter": entry("resources_servers", "counter", entrypoint="app.py")}
    venv = parse_overrides([f"+venv={tmp_path / 'env'}"])
    assert python_of(load_tree(site, tree)) == python
    assert python_of(load([str(config_file.relative_to(site))], venv, [tmp_path, INSTALLED], {})) == python


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"entrypoint": "app.py"}, r"counter: .* python: .* venv: .* install: uv"),
        (
            {"python": sys.executable, "name": "???"},
            r"counter\.resources_servers\.counter\.name: .*\+\+counter\.resources",
        ),
        ({"python": "/nowhere/python"}, "counter.python is '/nowhere/python'"),
        ({"venv": "/nowhere"}, "counter.venv is '/nowhere'.* bin/python"),
        ({"python": sys.executable, "venv": "/nowhere"}, "python and venv"),
        ({"install": "pip"}, "'install' is 'pip'"),
        ({"python": sys.executable, "host": "0.0.0.0"}, "counter.host is '0.0.0.0'"),
        ({"python": sys.executable, "replicas": 2}, "'replicas' is 2"),
        ({"pyhton": sys.executable}, "'pyhton'.* 'python'"),
    ],
)
def test_an_invalid_launch_setting_is_refused_with_its_value(tmp_path: Path, settings: Json, message: str) -> None:
    make_root(tmp_path)
    with pytest.raises(OperatorError, match=message):
        load_tree(tmp_path, {"counter": entry("resources_servers", "counter", **settings)})


def test_nemo_gyms_server_does_not_hide_rollyards_unless_the_entry_has_an_interpreter(tmp_path: Path) -> None:
    folder = make_root(tmp_path, name="gsm8k")
    config = load_tree(tmp_path, {"maths": entry("resources_servers", "gsm8k", entrypoint="app.py")})
    assert config.servers[0].folder == (INSTALLED / "resources_servers" / "gsm8k").resolve()
    assert any("Rollyard's resources_servers/gsm8k is used" in note for note in config.notes)
    config = load_tree(tmp_path, {"maths": entry("resources_servers", "gsm8k", python=sys.executable)})
    assert config.servers[0].program is not None and config.servers[0].folder == folder.resolve()


@pytest.mark.parametrize(
    ("theirs", "ours", "setting"),
    [
        ("gymnasium_agent", "turn_agent", ("sum_steps", True)),
        ("non_executing_simple_agent", "simple_agent", ("execute_tools", False)),
        ("finance_agent", "simple_agent", ("execute_tools", True)),
    ],
)
def test_an_agent_that_makes_the_same_calls_plays_for_nemo_gyms(
    tmp_path: Path, theirs: str, ours: str, setting: tuple[str, object]
) -> None:
    config = agent_of(tmp_path, theirs, max_steps=4)
    spec = server(config, "agent")
    key, value = setting
    assert spec.implementation == ours and getattr(spec.settings, key) is value
    assert any(f"{ours} plays for" in note and theirs in note for note in config.notes)
    assert list(config.tree["agent"]["responses_api_agents"]) == [ours]


def test_settings_without_a_counterpart_are_named(tmp_path: Path) -> None:
    config = agent_of(tmp_path, "finance_agent", truncate_on_overflow=True, tool_call_timeout=9.0)
    assert any("not used: truncate_on_overflow" in note for note in config.notes)
    assert server(config, "agent").settings.model_dump()["tool_timeout_s"] == 9.0


def test_an_agent_that_nothing_replaces_runs_only_in_its_own_interpreter(tmp_path: Path) -> None:
    make_root(tmp_path, family="responses_api_agents", name="langgraph_agent")
    with pytest.raises(OperatorError, match=r"'langgraph_agent'.*venv="):
        agent_of(tmp_path, "langgraph_agent")
    shutil.rmtree(tmp_path / "resources_servers")
    spec = server(agent_of(tmp_path, "langgraph_agent", python=sys.executable), "agent")
    assert spec.program is not None and spec.family == "agents"


def test_settings_of_nemo_gyms_model_servers_are_translated(tmp_path: Path) -> None:
    settings: Json = {
        "model": "hub/model",
        "hf_home": "/models",
        "debug": True,
        "vllm_serve_env_vars": {"A": 1},
        "vllm_serve_kwargs": {"tensor_parallel_size": 2, "trust_remote_code": True, "max_model_len": None},
    }
    config = load_tree(tmp_path, {"policy_model": entry("responses_api_models", "local_vllm_model", **settings)})
    raw = config.servers[0].raw
    assert raw["environment"] == {"HF_HOME": "/models", "A": "1"}
    assert (raw["tensor_parallel_size"], raw["extra_flags"]) == (2, {"trust_remote_code": True})
    assert any("debug has" in note for note in config.notes)


ENGINE: Json = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "return_token_id_information": True}


def capturing(root: Path, block: Json, *, agent: str = "simple_agent", **engine: Any) -> RunConfig:
    """A config of NeMo Gym whose agent takes part in its training-token capture."""
    make_root(root)
    names = {"resources_server": RESOURCES, "model_server": POLICY, "token_id_capture": True}
    model = entry("responses_api_models", "vllm_model", **{**ENGINE, **engine})
    servers = {
        "counter": program_entry(),
        "policy_model": model,
        "agent": entry("responses_api_agents", agent, **names),
    }
    return load_tree(root, {**servers, "token_id_capture": {"enabled": True, "dir": "/captures", **block}})


@pytest.mark.parametrize("agent", ["simple_agent", "finance_agent"])
def test_training_token_capture_is_what_the_model_server_does_already(tmp_path: Path, agent: str) -> None:
    routes = [{"method": "GET", "path": "/metadata"}]
    config = capturing(tmp_path, {}, agent=agent, token_id_capture_non_generating_requests=routes)
    assert server(config, "policy_model").settings.model_dump()["return_token_id_information"] is True
    assert "token_id_capture" not in server(config, "agent").raw
    assert not [note for note in config.notes if "not used" in note]


@pytest.mark.parametrize(
    ("block", "engine", "found"),
    [
        ({}, {"return_token_id_information": False}, "policy_model records no tokens"),
        ({"sink": "module:Sink"}, {}, "token_id_capture.sink"),
        ({"external_staging": True}, {}, "token_id_capture.external_staging"),
        ({"rebuild_response": False}, {}, "token_id_capture.rebuild_response is false"),
    ],
)
def test_training_token_capture_that_would_give_no_tokens_is_refused(
    tmp_path: Path, block: Json, engine: Json, found: str
) -> None:
    with pytest.raises(OperatorError, match=found):
        capturing(tmp_path, block, **engine)
    assert capturing(tmp_path / "off", {**block, "enabled": False}, **engine)


def test_an_unknown_setting_of_a_server_that_nemo_gym_also_has_is_refused_with_how_to_run_that_one(
    tmp_path: Path,
) -> None:
    make_root(tmp_path, family="responses_api_models", name="vllm_model")
    settings = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "brand_new": 1}
    with pytest.raises(OperatorError, match=r"'brand_new'.*NeMo Gym"):
        load_tree(tmp_path, {"policy_model": entry("responses_api_models", "vllm_model", **settings)})


def test_the_key_of_a_judge_may_be_null(tmp_path: Path) -> None:
    settings: Json = {"openai_base_url": "http://127.0.0.1:9/v1", "openai_api_key": None, "openai_model": "m"}
    config = load_tree(tmp_path, {"judge": entry("responses_api_models", "openai_model", **settings)})
    assert config.servers[0].implementation == "openai_model"


def test_an_interpreter_for_a_server_that_nemo_gym_lacks_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match="resources_servers/gsm8k"):
        load_tree(tmp_path, {"maths": entry("resources_servers", "gsm8k", python=sys.executable)})


def test_a_users_own_server_of_the_same_name_is_used_with_a_note(tmp_path: Path) -> None:
    folder = tmp_path / "resources_servers" / "gsm8k"
    folder.mkdir(parents=True)
    (folder / "app.py").write_text(PLAIN_APP)
    config = load_tree(tmp_path, {"maths": entry("resources_servers", "gsm8k")})
    assert config.servers[0].folder == folder.resolve()
    assert any(f"{folder.resolve()} is used" in note for note in config.notes)


def test_an_ordinary_mapping_gets_no_hint_about_families(tmp_path: Path) -> None:
    make_root(tmp_path)
    config = load_tree(
        tmp_path,
        {"counter": program_entry(), "checks": {"agent": {"labels": ["a"], "rewards": {}}, "args": {"x": {}, "y": 1}}},
    )
    assert len(config.servers) == 1


def fronted(root: Path, implementation: str, agent: str = "agent") -> RunConfig:
    make_root(root)
    server = {"agent_server": {"type": "responses_api_agents", "name": agent}, "resources_server": RESOURCES}
    names = {"resources_server": RESOURCES, "model_server": POLICY}
    servers = {"counter": program_entry(), "policy_model": MODEL, "agent": entry("agents", "simple_agent", **names)}
    return load_tree(root, {**servers, "front": {"environment_servers": {implementation: server}}})


@pytest.mark.parametrize(("implementation", "notes"), [("legacy_agent", 0), ("single_agent_turn", 1)])
def test_an_agent_is_its_own_environment_server(tmp_path: Path, implementation: str, notes: int) -> None:
    config = fronted(tmp_path, implementation)
    assert [spec.name for spec in config.servers] == ["counter", "policy_model", "agent"]
    assert len([note for note in config.notes if note.startswith("front: agent does")]) == notes
    tree = {**config.tree, "agent": {"responses_api_agents": {"simple_agent": {"host": "h", "port": 7}}}}
    served = with_environment_servers(tree)
    assert served.keys() == tree.keys()
    found = served["front"]["environment_servers"][implementation]
    assert (found["host"], found["port"], found["agent_server"]["name"]) == ("h", 7, "agent")


def test_an_agent_without_an_address_has_no_environment_server_yet() -> None:
    tree = {"agent": {"responses_api_agents": {"simple_agent": {"port": 7}}}}
    assert with_environment_servers(tree) == tree


def test_the_name_of_an_environment_server_avoids_those_of_other_servers() -> None:
    agent = {"responses_api_agents": {"simple_agent": {"host": "h", "port": 7}}}
    tree = {"x_simple_agent": agent, "y": {"x_environment_server": 1}}
    assert "x_environment_server" in with_environment_servers(tree)
    assert "x_simple_agent_environment_server" in with_environment_servers({**tree, "x_environment_server": {}})


def test_an_environment_server_whose_work_no_agent_does_or_without_its_agent_is_refused(tmp_path: Path) -> None:
    with pytest.raises(OperatorError, match=r"'nemo_user_sim'.*--head.*'~front'"):
        fronted(tmp_path / "a", "nemo_user_sim")
    with pytest.raises(OperatorError, match=r"front.agent_server refers to 'agnet'.*did you mean 'agent'"):
        fronted(tmp_path / "b", "legacy_agent", "agnet")


def test_settings_of_model_servers_of_0_7_are_understood_or_named(tmp_path: Path) -> None:
    settings: Json = {"base_url": "http://127.0.0.1:9/v1", "model": "m", "max_http_attempts": 7}
    quiet = {"max_concurrent_requests": 2, "endpoint_file": None, "endpoint_check_interval_s": 10.0}
    config = load_tree(tmp_path, {"policy": entry("responses_api_models", "vllm_model", **settings, **quiet)})
    assert config.servers[0].raw["max_attempts"] == 7
    assert any("max_concurrent_requests" in note for note in config.notes)
    with pytest.raises(OperatorError, match="endpoint_file"):
        load_tree(tmp_path, {"policy": entry("responses_api_models", "vllm_model", **settings, endpoint_file="/f")})
