"""The settings of local_vllm_model become command lines and environment variables; mistakes are named."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.errors import OperatorError
from rollyard.responses_api_models.local_vllm_model.app import gpu_assignments, snapshot
from rollyard.responses_api_models.local_vllm_model.engine import PORT_TAKEN, cause_of, error_of, kind, phase_after
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
    base |= {"ROLLYARD_TOKEN_FILE": "/t", "policy_api_key_FILE": "/k", "PYTHONPATH": "/users/own"}
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
    without_key = engine_environment(settings(), {"VLLM_API_KEY": "the user's"}, FOLDER, (), "")
    assert "VLLM_API_KEY" not in without_key


def test_ray_workers_on_other_machines_get_no_local_folder() -> None:
    environ = environment(ray_address="10.0.0.1:6379")
    assert environ["RAY_ADDRESS"] == "10.0.0.1:6379"
    assert "VLLM_RPC_BASE_PATH" not in environ


INVALID: list[tuple[dict[str, Any], str]] = [
    ({"engine_port": 8000, "engine_replicas": 2}, "set engine_replicas and replicas to 1"),
    ({"replicas": 2, "trainer_endpoints": True}, "set replicas to 1"),
    ({"extra_flags": {"port": 8000}}, "--port is not allowed in extra_flags; set engine_port"),
    ({"extra_flags": ["--served-model-name=x"]}, "--served-model-name is not allowed in extra_flags"),
    ({"tensor_paralel_size": 2}, "did you mean 'tensor_parallel_size'?"),
    ({"gpu_memory_utilization": 90}, "'gpu_memory_utilization' is 90, but"),
]


def test_an_invalid_setting_is_refused_before_anything_starts() -> None:
    for mistake, message in INVALID:
        with pytest.raises(OperatorError) as raised:
            settings(**mistake)
        assert message in str(raised.value)


@pytest.mark.parametrize(
    ("more", "assigned"),
    [
        ({"engine_replicas": 3, "tensor_parallel_size": 2}, [["0", "1"], ["2", "3"], ["4", "5"]]),
        ({"gpus": [7, "GPU-x"], "engine_replicas": 2}, [["7"], ["GPU-x"]]),
        ({"tensor_parallel_size": 16, "ray_address": "h:1"}, [[]]),  # vLLM chooses
    ],
)
def test_each_engine_gets_its_own_gpus(more: dict[str, Any], assigned: list[list[str]]) -> None:
    assert gpu_assignments(settings(**more), [str(number) for number in range(8)]) == assigned
    assert gpu_assignments(settings(engine_replicas=2), []) == [[], []]  # a CPU


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


def test_control_endpoints_and_adapters_need_the_trainer_endpoints() -> None:
    flags = {"enable_lora": True, "max_lora_rank": 16}
    opened = environment(trainer_endpoints=True, extra_flags=flags)
    assert (opened["VLLM_SERVER_DEV_MODE"], opened["VLLM_ALLOW_RUNTIME_LORA_UPDATING"]) == ("1", "1")
    assert "VLLM_ALLOW_RUNTIME_LORA_UPDATING" not in environment(trainer_endpoints=True)
    closed = environment(extra_flags=flags)
    assert not {"VLLM_SERVER_DEV_MODE", "VLLM_ALLOW_RUNTIME_LORA_UPDATING"} & closed.keys()


# A model named as on the Hugging Face hub is found in huggingface_hub's cache.


@pytest.mark.parametrize(
    ("variable", "subfolder"), [("HF_HUB_CACHE", ""), ("HF_HOME", "hub"), ("XDG_CACHE_HOME", "huggingface/hub")]
)
def test_a_downloaded_model_is_found_by_branch_and_by_commit(tmp_path: Path, variable: str, subfolder: str) -> None:
    cached = tmp_path / subfolder / "models--Qwen--Qwen3-4B"
    (cached / "snapshots" / "abc").mkdir(parents=True)
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("abc")
    environ = {variable: str(tmp_path)}
    assert (
        snapshot("Qwen/Qwen3-4B", "main", environ)
        == snapshot("Qwen/Qwen3-4B", "abc", environ)
        == cached / "snapshots/abc"
    )
    assert snapshot("Qwen/Qwen3-4B", "other", environ) is None
    assert snapshot("Qwen/Qwen3-8B", "main", environ) is None


# vLLM's log (lines of vLLM 0.32) is summarized as what it is doing and why it failed.

LOG = [
    ("W1121 19:25:08.082000 4035 torch/_library/triton.py:53] Triton not available", "importing vLLM"),
    ("(Worker pid=3) INFO 11-21 [gpu_model_runner.py:5040] Starting to load model m...", "loading weights"),
    ("Loading safetensors checkpoint shards:  38% Completed | 3/8 [00:10<00:17,  3.4s/it]", "loading weights 3/8"),
    ("(Worker pid=3) INFO 11-21 [default_loader.py:501] Loading weights took 30.01 seconds", "profiling memory"),
    ("Capturing CUDA graphs (mixed prefill-decode, PIECEWISE):  51%|#####   | 26/51", "capturing CUDA graphs 26/51"),
    ("(APIServer pid=1) INFO [entry.py:140] Starting vLLM server on http://127.0.0.1:51561", "starting the API server"),
]


def test_the_phase_follows_the_log() -> None:
    phase = "importing vLLM"
    for line, expected in LOG:
        phase = phase_after([line], phase)
        assert phase.startswith(expected), line
        assert expected.startswith(kind(phase)), line


CORE = "(EngineCore pid=2) ERROR 11-21 19:26:09 [core.py:1201] "
API = "(APIServer pid=1) "
CAUSES = [
    ("cannot start vllm: No such file or directory", "the command vllm cannot be started (No such file"),
    ("vllm: error: unrecognized arguments: --enable-scale-out", "does not support --enable-scale-out: it is too old"),
    (
        API + "KeyError: 'invalid tool call parser: nope (chose from { hermes,mistral })'",
        "tool_call_parser nope does not exist; available are hermes,mistral",
    ),
    (API + "OSError: [Errno 98] Address already in use", PORT_TAKEN),
    (
        CORE + "ValueError: Free memory on device cuda:0 (12.5/79.2 GiB) on startup is less than desired GPU memory "
        "utilization (0.92, 72.86 GiB). Decrease GPU memory utilization",
        "12.5 of 79.2 GiB are free on cuda:0, but gpu_memory_utilization=0.92 requires 72.86",
    ),
    (
        CORE + "ValueError: To serve at least one request with the model's max seq len (40960), (5.62 GiB KV cache is "
        "needed, which is larger than the available KV cache memory (2.17 GiB). Based on",
        "max_model_len=40960 needs 5.62 GiB of KV cache, but only 2.17 GiB are available",
    ),
    ("requests.exceptions.HTTPError: 404 Client Error: Not Found for url", "nor the name of a hub model"),
    ("huggingface_hub.errors.GatedRepoError: 401 Client Error.", "accept its licence"),
]


@pytest.mark.parametrize(("line", "message"), CAUSES, ids=lambda text: text[-40:])
def test_common_causes_are_named(line: str, message: str) -> None:
    noise = ["(APIServer pid=1) INFO 11-21 19:25:09 [x.py:1] all is well", "Traceback (most recent call last):"]
    echo = "(APIServer pid=1) RuntimeError: Engine core initialization failed. See root cause above."
    cause = cause_of([*noise, line, echo])
    assert cause is not None
    assert message in cause


def test_a_warning_is_not_a_cause() -> None:
    assert cause_of(["(EngineCore pid=2) WARNING 11-21 [parallel.py:746] Address already in use. Retrying"]) is None


def test_an_unknown_cause_is_shown_as_the_original_error() -> None:
    lines = [
        CORE + "ValueError: the moon is in the wrong phase",
        API + "RuntimeError: Engine core initialization failed.",
    ]
    assert error_of(lines) == "ValueError: the moon is in the wrong phase"
    assert error_of(["nothing of the kind"]) is None
