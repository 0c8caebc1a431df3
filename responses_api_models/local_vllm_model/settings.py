"""Settings of a local_vllm_model: the number of engines, their GPUs, and vLLM options under their vLLM names."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal, Self

import orjson
from pydantic import Field, SecretStr, field_validator, model_validator

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.services.http.ray_address import ray_authentication
from rollyard.services.server.settings import redacted

_RESERVED_FLAGS = {
    "host": "set engine_host",
    "port": "set engine_port",
    "uds": "engines listen on a TCP port",
    "api-key": "set api_key",
    "model": "set model",
    "served-model-name": "set served_model_name",
}
"""Flag that is not allowed in `extra_flags` -> what to set instead, or why it cannot be set."""


class LocalVllmModelSettings(ChatEngineSettings):
    """Settings of engines that this server starts. `model` is a folder or the name of a hub model."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ChatEngineSettings.NOT_IDENTITY | {
        *("vllm_command", "engine_host", "engine_replicas", "gpus", "gpu_memory_utilization", "start_timeout_s"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "ray_address", "environment"),
        *("served_model_name", "enable_scale_out", "engine_port", "engine_log", "health_timeout_s"),
    }

    served_model_name: str | None = None
    """Name of the model in responses and at /v1/models; default: `model`."""
    vllm_command: list[str] = Field(["vllm"], min_length=1)
    """Command to which `serve ...` is appended; set it to a path to use vLLM from a different environment."""
    engine_replicas: int = Field(1, ge=1)
    """Number of engines, each on its own GPUs; an episode stays on one engine. (`replicas` counts servers, of which
    there are several only on a Ray cluster, where each reserves GPUs.)"""
    gpus: list[int | str] | None = None
    """GPUs to use, named as in CUDA_VISIBLE_DEVICES; default: all visible GPUs, or the CPU if there are none."""
    tensor_parallel_size: int = Field(1, ge=1)
    """Number of GPUs that each layer is split across."""
    pipeline_parallel_size: int = Field(1, ge=1)
    """Number of GPU groups among which the layers are divided."""
    data_parallel_size: int = Field(1, ge=1)
    """Number of copies of the model behind one engine's API (for expert parallelism; otherwise use engine_replicas)."""
    dtype: str = "auto"
    """Data type of weights and activations."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Fraction of each GPU's memory that the engine uses; null: vLLM's default."""
    max_model_len: int | None = Field(None, ge=1)
    """Maximum context length in tokens; null: the model's own limit."""
    tool_call_parser: str | None = None
    """The model's tool call format (hermes, llama3_json, ...); null: the engine does not parse tool calls."""
    reasoning_parser: str | None = None
    """The model's reasoning format (qwen3, deepseek_r1, ...); null: reasoning stays in the content."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = "processed_logprobs"
    """Whether log-probabilities are taken before (raw) or after (processed) temperature and penalties are applied.
    Trainers need the log-probabilities under the distribution that was sampled from."""
    enable_scale_out: bool = True
    """Enable vLLM's token-in endpoints (/inference/v1/generate, .../render). Set this to false if your vLLM version
    lacks the flag."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster (or auto), if one engine needs the GPUs of several hosts."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Additional environment variables for the engines."""
    extra_flags: Json | list[str] = Field(default_factory=dict)
    """Additional flags for `vllm serve`: {max_num_seqs: 64, enforce_eager: true} or ["--max-num-seqs", "64"]."""
    engine_host: str = "127.0.0.1"
    """Address that the engines bind to. Their control endpoints require no key, so use a loopback address if
    possible."""
    engine_port: int | None = Field(None, ge=1, le=65535)
    """Port of the only engine, for other programs that use it too; null: a free port."""
    api_key: SecretStr | None = None
    """API key that the engines require; null: a random one, empty: none."""
    engine_log: Path | None = None
    """File to which the output of the only engine is appended; null: a file next to the run's logs."""
    start_timeout_s: float | None = Field(1800.0, gt=0)
    """Maximum time until an engine is ready; null: no limit."""
    health_timeout_s: float | None = Field(None, gt=0)
    """An engine that has not answered GET /health for this long is restarted; null: only one that has died."""

    @property
    def gpus_per_engine(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def needed_gpus(self) -> int:
        chosen_elsewhere = self.gpus is not None or self.ray_address is not None  # by the user, or by vLLM
        return 0 if chosen_elsewhere else self.engine_replicas * self.gpus_per_engine

    @property
    def names(self) -> list[str]:
        """Names under which the engines serve the model; the first one appears in responses."""
        return list(dict.fromkeys([self.served_model_name or self.model, self.model]))

    @field_validator("extra_flags")
    @classmethod
    def _not_reserved(cls, value: Json | list[str]) -> Json | list[str]:
        for flag in value:
            if isinstance(value, list) and not flag.startswith("-"):
                continue  # the value of a flag
            name = str(flag).lstrip("-").partition("=")[0].replace("_", "-")
            if name in _RESERVED_FLAGS:
                raise ValueError(f"--{name} is not allowed in extra_flags; {_RESERVED_FLAGS[name]}")
        return value

    @model_validator(mode="after")
    def _one_engine(self) -> Self:
        if (self.engine_replicas, self.replicas) != (1, 1) and (self.engine_port or self.engine_log):
            raise ValueError(
                "engine_port and engine_log are of one engine; unset them, or set engine_replicas and replicas to 1"
            )
        return self


# Builds the arguments and the environment for `vllm serve` from the settings, without side effects.

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
    """Return an engine's environment variables: this process's without our secrets, and the settings'."""
    environ = {"VLLM_NO_USAGE_STATS": "1", "PYTHONUNBUFFERED": "1", **base}
    if settings.start_timeout_s is not None:
        environ.setdefault("VLLM_ENGINE_READY_TIMEOUT_S", str(math.ceil(settings.start_timeout_s)))  # else 600
    environ.pop("VLLM_SERVER_DEV_MODE", None)  # it opens control endpoints without a key; only settings may set it
    for name in ("ROLLYARD_TOKEN", "policy_api_key"):
        environ.pop(name, None)
        environ.pop(f"{name}_FILE", None)
    environ |= settings.environment
    path = [part for part in environ.get("PYTHONPATH", "").split(os.pathsep) if part]
    environ["PYTHONPATH"] = os.pathsep.join([str(folder / "guard"), *path])
    environ["SPT_NOENV"] = "1"  # keeps the environment of vLLM's retitled processes readable (engine_process.py)
    environ.pop("VLLM_API_KEY", None)
    if key:
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
