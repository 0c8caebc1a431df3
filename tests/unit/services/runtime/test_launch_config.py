from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from omegaconf import OmegaConf

from rollyard.records.data_files import INSTALLED
from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.run_config import RunConfig
from rollyard.services.runtime.foreign_launcher import launch_config
from rollyard.services.runtime.foreign_servers import PORTS, check_access, with_ports
from rollyard.services.runtime.stack import new_keys
from tests.support.foreign_folders import entry, make_root, program_entry

JUDGE = {"type": "responses_api_models", "name": "judge"}


def load_run(root: Path, **settings: Any) -> RunConfig:
    make_root(root)
    tree: Json = {
        "counter": program_entry(judge_model_server=JUDGE, **settings),
        "judge": entry("responses_api_models", "builtin_model"),
        "elsewhere": entry("resources_servers", "mcqa", url="http://10.0.0.5:8080"),
    }
    return with_ports(load([tree], [], [root, INSTALLED], {}))


def read(config: RunConfig) -> Json:
    parsed = OmegaConf.to_container(OmegaConf.create(launch_config(config, "http://127.0.0.1:11000")), resolve=True)
    assert isinstance(parsed, dict)
    return {str(key): value for key, value in parsed.items()}


def test_programs_learn_the_address_of_every_server_and_of_the_head(tmp_path: Path) -> None:
    config = load_run(tmp_path)
    tree = read(config)
    ports = {spec.name: spec.settings.port for spec in config.servers}
    assert tree["counter"]["resources_servers"]["counter"]["port"] == ports["counter"]
    assert tree["judge"]["responses_api_models"]["builtin_model"]["port"] == ports["judge"]
    external = tree["elsewhere"]["resources_servers"]["mcqa"]
    assert (external["host"], external["port"]) == ("10.0.0.5", 8080)
    assert tree["head_server"] == {"host": "127.0.0.1", "port": 11000}


def test_the_ports_differ_and_are_not_those_of_outgoing_connections(tmp_path: Path) -> None:
    ports = [spec.settings.port for spec in load_run(tmp_path).servers if spec.external_url is None]
    assert len(set(ports)) == 2 and all(port in PORTS for port in ports)


def test_a_run_without_programs_keeps_free_ports(tmp_path: Path) -> None:
    config = load([{"judge": entry("responses_api_models", "builtin_model")}], [], [tmp_path, INSTALLED], {})
    assert with_ports(config) is config


def test_a_programs_own_settings_arrive_unchanged_and_ours_stay_here(tmp_path: Path) -> None:
    odd: Json = {"a": [1, None, "1e5", "\\${x}", "line\u2028break", "\x7f", "yes", "2026-01-01"], "b": {"c": 1.5}}
    own = read(load_run(tmp_path, odd=odd, start_timeout_s=5))["counter"]["resources_servers"]["counter"]
    odd["a"][3] = "${x}"  # an escaped reference is text
    assert own["odd"] == odd and own["entrypoint"] == "app.py"
    assert not {"python", "venv", "install", "start_timeout_s"} & own.keys()


def test_a_program_that_calls_a_server_with_a_token_is_refused(tmp_path: Path) -> None:
    servers = load_run(tmp_path).servers
    check_access(servers[0], servers, new_keys())
    with pytest.raises(OperatorError, match=r"counter .*judge.* token"):
        check_access(servers[0], servers, new_keys("token"))
