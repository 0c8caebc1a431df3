"""The settings of local_vllm_model become command lines and environment variables; mistakes are named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.responses_api_models.local_vllm_model.app import gpu_assignments
from rollyard.responses_api_models.local_vllm_model.settings import (
    LocalVllmModelSettings,
    engine_environment,
    serve_arguments,
    shown,
)
from rollyard.services.server.settings import parse_settings

FOLDER = Path("/tmp/rollyard-engine-x")


def settings(**more: Any) -> LocalVllmModelSettings:
    return parse_settings(LocalVllmModelSettings, {"model": "Qwen/Qwen3-4B", **more}, "policy_model")


def environment(base: dict[str, str] | None = None, gpus: tuple[str, ...] = (), **more: Any) -> dict[str, str]:
    return engine_environment(settings(**more), base or {}, FOLDER, gpus, "a key")


def test_the_default_command() -> None:
    expected = (
        "vllm serve Qwen/Qwen3-4B --served-model-name Qwen/Qwen3-4B --host 127.0.0.1 --port 8001 "
        "--disable-uvicorn-access-log --dtype auto --logprobs-mode processed_logprobs --enable-scale-out"
    )
    assert serve_arguments(settings(), 8001) == expected.split()


def test_every_option_reaches_vllm() -> None:
    arguments = serve_arguments(
        settings(
            vllm_command=["/opt/v/bin/vllm"],
            served_model_name="policy",
            tensor_parallel_size=2,
            pipeline_parallel_size=3,
            data_parallel_size=4,
            dtype="bfloat16",
            gpu_memory_utilization=0.8,
            max_model_len=32768,
            tool_call_parser="hermes",
            reasoning_parser="qwen3",
            logprobs_mode=None,
            enable_scale_out=False,
            engine_host="::1",
            ray_address="10.0.0.1:6379",
            extra_flags={
                "max_num_seqs": 64,
                "--enforce-eager": True,
                "enable_prefix_caching": False,
                "seed": None,
                "hf_overrides": {"rope_theta": 1},
                "allowed-origins": ["a", "b"],
            },
        ),
        8001,
    )
    expected = (
        "/opt/v/bin/vllm serve Qwen/Qwen3-4B --served-model-name policy Qwen/Qwen3-4B --host ::1 --port 8001 "
        "--disable-uvicorn-access-log --tensor-parallel-size 2 --pipeline-parallel-size 3 --data-parallel-size 4 "
        "--distributed-executor-backend ray --data-parallel-backend ray --enable-auto-tool-choice --dtype bfloat16 "
        "--gpu-memory-utilization 0.8 --max-model-len 32768 --tool-call-parser hermes --reasoning-parser qwen3 "
        '--max-num-seqs 64 --enforce-eager --no-enable-prefix-caching --hf-overrides {"rope_theta":1} '
        "--allowed-origins a b"
    )
    assert arguments == expected.split()


def test_extra_flags_may_be_a_list_of_arguments() -> None:
    given = ["--max-num-seqs", "64", "--chat-template", "model"]
    assert serve_arguments(settings(extra_flags=given), 1)[-4:] == given


def test_a_command_is_displayed_without_its_secrets() -> None:
    arguments = serve_arguments(settings(extra_flags={"hf_token": "hf_abc", "max_num_seqs": 64}), 1)
    assert "hf_abc" in arguments
    assert shown(arguments).endswith("--hf-token *** --max-num-seqs 64")


def test_an_engine_inherits_the_environment_without_rollyards_own_variables() -> None:
    base = {"HF_TOKEN": "t", "ROLLYARD_TOKEN": "t", "policy_api_key": "k", "VLLM_SERVER_DEV_MODE": "1"}
    base["PYTHONPATH"] = "/users/own"
    assert environment(base, ("4", "5")) == {
        "HF_TOKEN": "t",
        "PYTHONPATH": os.pathsep.join([f"{FOLDER}/guard", "/users/own"]),
        "PYTHONUNBUFFERED": "1",
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_ENGINE_READY_TIMEOUT_S": "1800",
        "SPT_NOENV": "1",
        "VLLM_API_KEY": "a key",
        "VLLM_RPC_BASE_PATH": str(FOLDER),
        "CUDA_VISIBLE_DEVICES": "4,5",
    }


def test_the_environment_setting_overrides_inherited_variables_and_defaults() -> None:
    environ = environment({"HF_HOME": "/a"}, environment={"HF_HOME": "/b", "VLLM_NO_USAGE_STATS": "0"})
    assert (environ["HF_HOME"], environ["VLLM_NO_USAGE_STATS"]) == ("/b", "0")


def test_vllms_control_endpoints_are_open_only_with_trainer_endpoints() -> None:
    assert "VLLM_SERVER_DEV_MODE" not in environment()
    assert environment(trainer_endpoints=True)["VLLM_SERVER_DEV_MODE"] == "1"


def test_ray_workers_on_other_machines_get_no_local_folder() -> None:
    environ = environment(ray_address="10.0.0.1:6379")
    assert environ["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert "VLLM_RPC_BASE_PATH" not in environ


@pytest.mark.parametrize(
    ("mistake", "message"),
    [
        ({"replicas": 2}, "set engine_replicas instead"),
        ({"engine_port": 8000, "engine_replicas": 2}, "set engine_replicas to 1"),
        (
            {"extra_flags": {"port": 8000}},
            "--port is not allowed in extra_flags; set engine_port",
        ),
        (
            {"extra_flags": ["--served-model-name=x"]},
            "--served-model-name is not allowed in extra_flags; set served_model_name",
        ),
        ({"tensor_paralel_size": 2}, "did you mean 'tensor_parallel_size'?"),
        ({"gpu_memory_utilization": 90}, "'gpu_memory_utilization' is 90, but"),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict) else "",
)
def test_an_invalid_setting_is_refused_before_anything_starts(mistake: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError) as raised:
        settings(**mistake)
    assert message in str(raised.value)


def test_each_engine_gets_its_own_gpus() -> None:
    visible = [str(number) for number in range(8)]
    assert gpu_assignments(settings(engine_replicas=3, tensor_parallel_size=2), visible) == [
        ["0", "1"],
        ["2", "3"],
        ["4", "5"],
    ]
    assert gpu_assignments(settings(gpus=[7, "GPU-x"], engine_replicas=2), visible) == [["7"], ["GPU-x"]]


def test_vllm_chooses_the_devices_without_gpus_and_on_a_ray_cluster() -> None:
    assert gpu_assignments(settings(engine_replicas=2), []) == [[], []]
    assert gpu_assignments(settings(tensor_parallel_size=16, ray_address="h:1"), ["0"]) == [[]]


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"tensor_parallel_size": 4}, "one engine needs 4 GPUs .*, but this host has 2 .0, 1.*set ray_address"),
        ({"engine_replicas": 3}, "engine_replicas=3 needs 3 GPUs .* set engine_replicas to at most 2"),
        ({"gpus": []}, "but this host has 0 .gpus is empty"),
    ],
)
def test_an_error_about_too_few_gpus_says_what_would_fit(more: dict[str, Any], message: str) -> None:
    with pytest.raises(OperatorError, match=message):
        gpu_assignments(settings(**more), ["0", "1"])


def test_without_a_key_the_engine_requires_none() -> None:
    assert "VLLM_API_KEY" not in engine_environment(settings(), {"VLLM_API_KEY": "the user's"}, FOLDER, (), "")


def test_adapters_can_be_loaded_if_lora_and_the_trainer_endpoints_are_enabled() -> None:
    flags = {"enable_lora": True, "max_lora_rank": 16}
    assert environment(trainer_endpoints=True, extra_flags=flags)["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] == "1"
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(trainer_endpoints=True)
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(extra_flags=flags)
