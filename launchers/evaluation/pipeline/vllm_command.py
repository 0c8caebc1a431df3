"""Builds the command line and the environment of `vllm serve`, and checks that it can run."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path

from rollyard.launchers.evaluation.eval_config import EvalConfig, VllmSettings
from rollyard.launchers.evaluation.pipeline.model_source import SERVED
from rollyard.records.errors import OperatorError
from rollyard.records.io.gpus import visible_gpus
from rollyard.services.http.ray_address import ray_authentication

_OWN_FLAGS = ("--port", "--host", "--served-model-name", "--model", "--api-key")
_SECRET_FLAGS = ("--api-key", "--hf-token")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")


def model_of(config: EvalConfig) -> str:
    """Return the folder or hub name to serve."""
    return str(config.model).removeprefix(SERVED)


def find_vllm(settings: VllmSettings, environ: Mapping[str, str]) -> tuple[str, ...]:
    """Return the program. Raises OperatorError if vLLM is not installed."""
    if settings.command:
        if shutil.which(settings.command[0], path=environ.get("PATH")) is None:
            raise OperatorError(f"--vllm.command {settings.command[0]} was not found or is not executable")
        return settings.command
    beside = Path(sys.executable).with_name("vllm")
    found = str(beside) if beside.is_file() else shutil.which("vllm", path=environ.get("PATH"))
    if found is None:
        raise OperatorError(
            "--model vllm/... needs vLLM, which is not installed: pip install vllm, or set "
            "--vllm.command /path/to/env/bin/vllm to one in a different environment"
        )
    return (found,)


def check_vllm(config: EvalConfig, here: Path, environ: Mapping[str, str]) -> list[str]:
    """Check the model, the flags and the GPUs. Returns notes; raises OperatorError if vLLM could not start."""
    settings, model = config.vllm, model_of(config)
    for argument in settings.args:
        flag = argument.partition("=")[0]
        if flag in _SECRET_FLAGS:
            raise OperatorError(
                f"vllm.args contains {flag}, and a command line is visible to all users: use "
                f"{'policy_api_key' if flag == '--api-key' else 'the variable HF_TOKEN'} instead"
            )
        if flag in _OWN_FLAGS:
            raise OperatorError(f"vllm.args contains {flag}: use the setting vllm.{flag[2:].replace('-', '_')} instead")
    folder = here / Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise OperatorError(f"{folder} contains no config.json, so it is not a model that vLLM can serve")
    elif model.startswith(("/", ".", "~")) or not _HUB_NAME.fullmatch(model):
        raise OperatorError(f"model=vllm/{model}: {model!r} is neither a folder nor a hub name such as Qwen/Qwen3-4B")
    return _check_gpus(config, environ)


def _check_gpus(config: EvalConfig, environ: Mapping[str, str]) -> list[str]:
    needed = config.vllm.tensor_parallel_size * config.vllm.pipeline_parallel_size
    if needed == 1 or config.ray_head_node_address is not None:
        return []
    gpus = visible_gpus(environ)
    if gpus is None:
        raise OperatorError(
            f"vLLM would need {needed} GPUs (tensor x pipeline parallel size), but this host has none that nvidia-smi "
            "or CUDA_VISIBLE_DEVICES shows: reduce the sizes, or name a Ray cluster with ray_head_node_address"
        )
    if len(gpus) < needed:
        raise OperatorError(
            f"vLLM would need {needed} GPUs (tensor x pipeline parallel size), but this host has {len(gpus)} "
            f"({', '.join(gpus)}): reduce the sizes, or name a Ray cluster with ray_head_node_address"
        )
    return []


def serve_arguments(
    config: EvalConfig, command: tuple[str, ...], name: str, port: int, *, ray: bool, here: Path
) -> list[str]:
    """Return the command line that serves the model as `name`."""
    settings, model = config.vllm, model_of(config)
    folder = here / Path(model).expanduser()
    arguments = [*command, "serve", str(folder) if folder.is_dir() else model, "--served-model-name", name]
    arguments += ["--host", settings.host, "--port", str(port), "--dtype", settings.dtype]
    arguments += ["--tensor-parallel-size", str(settings.tensor_parallel_size)]
    if settings.pipeline_parallel_size != 1:
        arguments += ["--pipeline-parallel-size", str(settings.pipeline_parallel_size)]
    arguments += ["--gpu-memory-utilization", f"{settings.gpu_memory_utilization:g}"]
    if settings.max_model_len is not None:
        arguments += ["--max-model-len", str(settings.max_model_len)]
    if settings.tool_call_parser is not None:
        arguments += ["--enable-auto-tool-choice", "--tool-call-parser", settings.tool_call_parser]
    if settings.trust_remote_code:
        arguments.append("--trust-remote-code")
    if ray:
        arguments += ["--distributed-executor-backend", "ray"]
    return [*arguments, "--disable-uvicorn-access-log", *settings.args]


def serve_environment(environ: Mapping[str, str], key: str, ray_address: str | None) -> dict[str, str]:
    """Return the variables for vLLM. The key, if any, is one, because command lines are visible to all users."""
    variables = {"VLLM_NO_USAGE_STATS": "1", **environ, "VLLM_API_KEY": key}
    if not key:
        del variables["VLLM_API_KEY"]
    # Removed: the first opens control endpoints without a key, the others are secrets that vLLM does not need.
    for name in ("VLLM_SERVER_DEV_MODE", "ROLLYARD_TOKEN", "policy_api_key"):
        variables.pop(name, None)
    variables["SPT_NOENV"] = "1"  # vLLM's retitled processes keep their environment readable (leftover_processes.py)
    if ray_address is not None:
        variables |= {"RAY_ADDRESS": ray_address, **ray_authentication(ray_address, variables)}
    return variables
