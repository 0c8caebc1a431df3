"""Builds the arguments and the environment for `vllm serve` from the settings, without side effects."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.services.http.ray_address import ray_authentication
from rollyard.services.server.settings import redacted

_MAX_SOCKET_FOLDER_LENGTH = 60
"""Socket paths are limited to 107 characters; vLLM adds 37 to the folder's path."""


def serve_arguments(settings: LocalVllmModelSettings, port: int) -> list[str]:
    return [
        *settings.vllm_command,
        "serve",
        settings.model,
        "--served-model-name",
        *settings.names,
        *("--host", settings.engine_host),
        *("--port", str(port)),
        "--disable-uvicorn-access-log",  # it logs every request, including health checks
        *_options(settings),
        *flags(settings.extra_flags),
    ]


def _options(settings: LocalVllmModelSettings) -> Iterator[str]:
    for name in ("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size"):
        if (size := getattr(settings, name)) != 1:
            yield from _flag(name, size)
    if settings.ray_address:
        yield from ("--distributed-executor-backend", "ray")
        if settings.data_parallel_size != 1:
            yield from ("--data-parallel-backend", "ray")
    if settings.tool_call_parser:
        yield "--enable-auto-tool-choice"
    for name in ("dtype", "gpu_memory_utilization", "max_model_len", "tool_call_parser", "reasoning_parser"):
        yield from _flag(name, getattr(settings, name))
    yield from _flag("logprobs_mode", settings.logprobs_mode)
    if settings.enable_scale_out:
        yield "--enable-scale-out"


def flags(given: Json | list[str]) -> list[str]:
    """Return `extra_flags` as command-line arguments."""
    if isinstance(given, list):
        return list(given)
    return [argument for name, value in given.items() for argument in _flag(str(name), value)]


def _flag(name: str, value: Any) -> list[str]:
    name = name.lstrip("-").replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)]
    return [f"--{name}", orjson.dumps(value).decode() if isinstance(value, dict) else str(value)]


def shown(arguments: Sequence[str]) -> str:
    """Return the command line without secrets: extra_flags may contain --hf-token."""
    return " ".join(redacted(list(arguments)))


def engine_environment(
    settings: LocalVllmModelSettings, base: Mapping[str, str], folder: Path, gpus: Sequence[str], key: str
) -> dict[str, str]:
    """Return an engine's environment variables: those of this process except Rollyard's secrets, and those of the
    settings and the process guard.
    """
    environ = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1", **base}
    if settings.start_timeout_s is not None:
        environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(math.ceil(settings.start_timeout_s)))  # else 600
    environ.pop("VLLM_SERVER_DEV_MODE", None)  # it opens control endpoints without a key; only settings may set it
    environ.pop("ROLLYARD_TOKEN", None)
    environ |= settings.environment
    path = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environ["PYTHONPATH"] = os.pathsep.join([str(folder / "guard"), *path])
    environ["SPT_NOENV"] = "1"  # keeps the environment of vLLM's retitled processes readable (orphaned_processes.py)
    environ["VLLM_API_KEY"] = key
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if settings.trainer_endpoints:
        environ["VLLM_SERVER_DEV_MODE"] = "1"
        if "--enable-lora" in flags(settings.extra_flags):
            environ["VLLM_ALLOW_RUNTIME_LORA_UPDATING"] = "1"
    if settings.ray_address:
        environ |= {"RAY_ADDRESS": settings.ray_address, **ray_authentication(settings.ray_address, environ)}
    elif len(str(folder)) <= _MAX_SOCKET_FOLDER_LENGTH:  # Ray's workers get the variable too, without the folder
        environ["VLLM_RPC_BASE_PATH"] = str(folder)
    return environ
