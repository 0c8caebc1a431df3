"""Command: settings become the words and the environment of one `vllm serve`. Pure; nothing is started here."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson

from rollyard.responses_api_models.local_vllm_model.settings import LocalVllmModelSettings
from rollyard.services.server.settings import REDACTED, is_secret
from rollyard.services.types import Json

_LONGEST_SOCKET_FOLDER = 60
"""A socket's path may have 107 characters; vLLM adds 37 to the folder's."""


def serve_arguments(settings: LocalVllmModelSettings, port: int) -> list[str]:
    """The command line."""
    return [
        *settings.vllm_command,
        "serve",
        settings.model,
        "--served-model-name",
        *settings.names,
        *("--host", settings.engine_host),
        *("--port", str(port)),
        "--disable-uvicorn-access-log",  # thousands of lines a second, and ours twice a second
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
    """`extra_flags` as words."""
    if isinstance(given, list):
        return list(given)
    return [word for name, value in given.items() for word in _flag(str(name), value)]


def _flag(name: str, value: Any) -> list[str]:
    name = name.lstrip("-").replace("_", "-")
    if value is None:
        return []
    if isinstance(value, bool):
        return [f"--{name}" if value else f"--no-{name}"]
    if isinstance(value, list):
        return [f"--{name}", *(str(item) for item in value)]
    return [f"--{name}", orjson.dumps(value).decode() if isinstance(value, dict) else str(value)]


def shown(words: Sequence[str]) -> str:
    """The command line without secrets: extra_flags may hold --hf-token."""
    flags_before = ["", *words]
    return " ".join(
        REDACTED if _is_secret_flag(flag) else word for flag, word in zip(flags_before, words, strict=False)
    )


def _is_secret_flag(flag: str) -> bool:
    return flag.startswith("--") and is_secret(flag.lstrip("-").replace("-", "_"))


def engine_environment(
    settings: LocalVllmModelSettings, base: Mapping[str, str], folder: Path, gpus: Sequence[str], key: str
) -> dict[str, str]:
    """Environment of an engine: this process's, without what is ours alone, and what the settings and the guard add."""
    environ = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1", **base}
    if settings.start_timeout_s is not None:
        environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(math.ceil(settings.start_timeout_s)))  # else 600
    environ.pop("VLLM_SERVER_DEV_MODE", None)  # opens control endpoints that ask for no key: only where settings say so
    environ.pop("ROLLYARD_TOKEN", None)
    environ |= settings.environment
    path = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environ["PYTHONPATH"] = os.pathsep.join([str(folder / "guard"), *path])
    environ["SPT_NOENV"] = "1"  # keeps the environment of vLLM's retitled processes readable (orphans.py)
    environ["VLLM_API_KEY"] = key
    if gpus:
        environ["CUDA_VISIBLE_DEVICES"] = ",".join(gpus)
    if settings.trainer_endpoints:
        environ["VLLM_SERVER_DEV_MODE"] = "1"
    if settings.ray_address:
        environ["RAY_ADDRESS"] = settings.ray_address
    elif len(str(folder)) <= _LONGEST_SOCKET_FOLDER:  # Ray's workers get the variable too, without the folder
        environ["VLLM_RPC_BASE_PATH"] = str(folder)
    return environ
