"""The servers that a training run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides import parse_overrides
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import ServerConfigs, server_configs

OWN = {
    "policy_model": {
        "responses_api_models": {
            "vllm_model": {"entrypoint": "app.py", "base_url": "http://127.0.0.1:1/v1", "api_key": "x", "model": "m"}
        }
    }
}


def configs_of(folder: Path, gpus: list[str] | None = None, **keys: Any) -> ServerConfigs:
    given = {"model": "tiny", "output_dir": folder / "out", "environments": ["gsm8k"], **keys}
    return server_configs(TrainConfig.model_validate(given), "/models/tiny", gpus, {}, folder)


def policy_of(configs: ServerConfigs) -> dict[str, Any]:
    (spec,) = [one for one in configs.run_config.servers if one.name == "policy_model"]
    return spec.raw


def test_the_engine_serves_the_model_to_the_trainer(tmp_path: Path) -> None:
    configs = configs_of(tmp_path)
    policy = policy_of(configs)
    assert (policy["model"], policy["trainer_endpoints"], policy["return_token_id_information"]) == (
        "/models/tiny",
        True,
        True,
    )
    assert policy["dtype"] == "float32" and policy["extra_flags"]["kv_cache_memory_bytes"] > 0
    assert {spec.name for spec in configs.run_config.servers} == {
        "policy_model",
        "gsm8k_agent",
        "gsm8k_resources_server",
    }


def test_settings_of_the_users_configs_and_overrides_replace_the_engines(tmp_path: Path) -> None:
    mine = {"policy_model": {"responses_api_models": {"local_vllm_model": {"max_model_len": 512}}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    override = "policy_model.responses_api_models.local_vllm_model.strict_tools=true"
    policy = policy_of(configs_of(tmp_path, config_paths=["mine.yaml"], overrides=[override]))
    assert (policy["max_model_len"], policy["strict_tools"], policy["model"]) == (512, True, "/models/tiny")


def test_a_model_server_of_the_users_configs_is_used_and_can_be_trained(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(yaml.safe_dump(OWN))
    configs = configs_of(tmp_path, config_paths=["own.yaml"])
    policy = policy_of(configs)
    assert configs.policy is None and "own.yaml" in configs.paths
    assert policy["trainer_endpoints"] is policy["return_token_id_information"] is True


def test_a_model_server_without_weights_is_refused(tmp_path: Path) -> None:
    builtin = "responses_api_models/builtin_model/configs/builtin_model.yaml"
    with pytest.raises(OperatorError, match=r"policy_model .*builtin_model"):
        configs_of(tmp_path, config_paths=[builtin])


@pytest.mark.parametrize(
    ("gpus", "expected"),
    [
        (["0"], {"gpus": ["0"], "gpu_memory_utilization": 0.4}),
        (["0", "1", "3"], {"gpus": ["1", "3"], "engine_replicas": 2}),
    ],
)
def test_the_first_gpu_is_the_trainers_and_is_shared_only_if_there_is_no_other(
    tmp_path: Path, gpus: list[str], expected: dict[str, Any]
) -> None:
    policy = policy_of(configs_of(tmp_path, gpus))
    assert expected.items() <= policy.items() and "extra_flags" not in policy


def test_an_engine_on_ray_takes_the_gpus_of_its_host(tmp_path: Path) -> None:
    policy = policy_of(configs_of(tmp_path, ["0", "1"], ray_head_node_address="127.0.0.1:6379"))
    assert not {"gpus", "engine_replicas", "gpu_memory_utilization"} & policy.keys()


def test_each_process_of_accelerate_has_a_gpu_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "accelerate.yaml").write_text("num_processes: 2\n")
    optimizer = {"accelerate_config": tmp_path / "accelerate.yaml"}
    assert policy_of(configs_of(tmp_path, ["0", "1", "2"], optimizer=optimizer))["gpus"] == ["2"]


def test_the_engine_takes_adapters_of_the_rank_that_is_trained(tmp_path: Path) -> None:
    flags = policy_of(configs_of(tmp_path, ["0"], optimizer={"lora": {"rank": 20}}))["extra_flags"]
    assert flags == {"enable_lora": True, "max_lora_rank": 32}


def test_the_command_reads_back_what_was_configured_and_contains_no_token(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"ready_timeout_s": 77, "ray_head_node_address": "127.0.0.1:6379"}
    configs = configs_of(tmp_path, **keys)
    config = TrainConfig(model="tiny", output_dir=tmp_path / "out", environments=("gsm8k",), **keys)
    file = tmp_path / "out" / "policy_server.yaml"
    command = configs.command(config, file, tmp_path / "logs")
    values = {one.key: one.value for one in parse_overrides(command[command.index("ng_run") + 1 :])}
    assert values["config_paths"] == [str(file), "resources_servers/gsm8k/configs/gsm8k.yaml"]
    assert (values["ready_timeout_s"], values["ray_head_node_address"], values["log_folder"]) == (
        77,
        "127.0.0.1:6379",
        str(tmp_path / "logs"),
    )
    assert yaml.safe_load(file.read_text()) == configs.policy
    assert "token" not in values
