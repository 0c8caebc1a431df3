"""The servers that a training run starts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides import parse_overrides
from rollyard.training.train_config import TrainConfig
from rollyard.training.training_stack import ServerConfigs, agents_of_head, server_configs
from tests.support.stacks import colocated, load_config

MODEL = {"entrypoint": "app.py", "base_url": "http://127.0.0.1:1/v1", "api_key": "x", "model": "m"}


def configs_of(folder: Path, gpus: list[str] | None = None, **keys: Any) -> ServerConfigs:
    given = {"model": "tiny", "output_dir": folder / "out", "environments": ["gsm8k"], **keys}
    return server_configs(TrainConfig.model_validate(given), "/models/tiny", gpus, {}, folder)


def policy_of(configs: ServerConfigs) -> dict[str, Any]:
    (spec,) = [one for one in configs.run_config.servers if one.name == "policy_model"]
    return spec.raw


def test_the_engine_serves_the_model_to_the_trainer(tmp_path: Path) -> None:
    configs = configs_of(tmp_path)
    policy = policy_of(configs)
    own = {"model": "/models/tiny", "trainer_endpoints": True, "return_token_id_information": True, "dtype": "float32"}
    assert own.items() <= policy.items() and policy["extra_flags"]["kv_cache_memory_bytes"] > 0
    names = {spec.name for spec in configs.run_config.servers}
    assert names == {"policy_model", "gsm8k_agent", "gsm8k_resources_server"}


def test_settings_of_the_users_configs_and_overrides_replace_the_engines(tmp_path: Path) -> None:
    mine = {"policy_model": {"responses_api_models": {"local_vllm_model": {"max_model_len": 512}}}}
    (tmp_path / "mine.yaml").write_text(yaml.safe_dump(mine))
    override = "policy_model.responses_api_models.local_vllm_model.strict_tools=true"
    policy = policy_of(configs_of(tmp_path, config_paths=["mine.yaml"], overrides=[override]))
    assert (policy["max_model_len"], policy["strict_tools"], policy["model"]) == (512, True, "/models/tiny")


def test_a_model_server_of_the_users_configs_is_used_and_can_be_trained(tmp_path: Path) -> None:
    (tmp_path / "own.yaml").write_text(
        yaml.safe_dump({"policy_model": {"responses_api_models": {"vllm_model": MODEL}}})
    )
    configs = configs_of(tmp_path, config_paths=["own.yaml"])
    policy = policy_of(configs)
    assert configs.policy is None and "own.yaml" in configs.paths
    assert policy["trainer_endpoints"] is policy["return_token_id_information"] is True


def test_a_model_server_without_weights_is_refused(tmp_path: Path) -> None:
    builtin = "responses_api_models/builtin_model/configs/builtin_model.yaml"
    with pytest.raises(OperatorError, match=r"policy_model .*builtin_model"):
        configs_of(tmp_path, config_paths=[builtin])


@pytest.mark.parametrize(
    ("gpus", "keys", "expected"),
    [
        (["0"], {}, {"gpus": ["0"], "gpu_memory_utilization": 0.4}),
        (["0", "1", "3"], {}, {"gpus": ["1", "3"], "engine_replicas": 2}),
        (["0", "1"], {"ray_head_node_address": "127.0.0.1:6379"}, {}),
        (
            ["0", "1", "2"],
            {"optimizer": {"accelerate_config": "accelerate.yaml"}},
            {"gpus": ["2"], "engine_replicas": 1},
        ),
        (["0"], {"optimizer": {"lora": {"rank": 20}}}, {"extra_flags": {"enable_lora": True, "max_lora_rank": 32}}),
    ],
    ids=["shared", "the first is the trainer's", "Ray", "two processes of accelerate", "adapters"],
)
def test_the_engine_gets_the_gpus_that_the_trainer_leaves_and_the_rank_of_the_adapters(
    here: Path, gpus: list[str], keys: dict[str, Any], expected: dict[str, Any]
) -> None:
    Path("accelerate.yaml").write_text("num_processes: 2\n")
    policy = policy_of(configs_of(here, gpus, **keys))
    assert expected.items() <= policy.items()
    assert expected or not {"gpus", "engine_replicas", "gpu_memory_utilization", "extra_flags"} & policy.keys()


def test_the_command_reads_back_what_was_configured_and_contains_no_token(tmp_path: Path) -> None:
    keys: dict[str, Any] = {"ready_timeout_s": 77, "ray_head_node_address": "127.0.0.1:6379"}
    configs = configs_of(tmp_path, **keys)
    config = TrainConfig(model="tiny", output_dir=tmp_path / "out", environments=("gsm8k",), **keys)
    file = tmp_path / "out" / "policy_server.yaml"
    command = configs.command(config, file, tmp_path / "logs")
    values = {one.key: one.value for one in parse_overrides(command[command.index("ng_run") + 1 :])}
    assert values["config_paths"] == [str(file), "resources_servers/gsm8k/configs/gsm8k.yaml"]
    assert {**keys, "log_folder": str(tmp_path / "logs")}.items() <= values.items() and "token" not in values
    assert yaml.safe_load(file.read_text()) == configs.policy


async def test_the_token_of_a_running_stack_may_be_in_a_file(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t\n")
    async with colocated(load_config(), tmp_path, token="t") as stack:
        config = TrainConfig(model="tiny", output_dir=tmp_path / "out", head=stack.head_url)
        with pytest.raises(OperatorError, match="export it as ROLLYARD_TOKEN"):
            await agents_of_head(config, {})
        with pytest.raises(OperatorError, match="policy_model cannot be trained"):  # its policy has no weights
            await agents_of_head(config, {"ROLLYARD_TOKEN_FILE": str(tmp_path / "token")})
