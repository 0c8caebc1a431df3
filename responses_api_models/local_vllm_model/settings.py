"""Settings of a local_vllm_model: the number of engines, their GPUs, and vLLM options under their vLLM names."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rollyard.records.types import Json
from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings

_RESERVED_FLAGS = {
    "host": "set engine_host",
    "port": "each engine uses a free port",
    "uds": "engines listen on a TCP port",
    "api-key": "each server generates its own key",
    "model": "set model",
    "served-model-name": "set served_model_name",
}
"""Flag that is not allowed in `extra_flags` -> what to set instead, or why it cannot be set."""


class LocalVllmModelSettings(ChatEngineSettings):
    """Settings of engines that this server starts. `model` is a folder or the name of a hub model."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ChatEngineSettings.NOT_IDENTITY | {
        *("vllm_command", "engine_host", "engine_replicas", "gpus", "gpu_memory_utilization", "start_timeout_s"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "ray_address", "environment"),
        *("served_model_name", "enable_scale_out"),
    }

    served_model_name: str | None = None
    """Name of the model in responses and at /v1/models; default: `model`."""
    vllm_command: list[str] = Field(["vllm"], min_length=1)
    """Command to which `serve ...` is appended; set it to a path to use vLLM from a different environment."""
    engine_replicas: int = Field(1, ge=1)
    """Number of engines, each on its own GPUs; an episode stays on one engine. (`replicas` counts servers and must be
    1.)"""
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
    start_timeout_s: float | None = Field(1800.0, gt=0)
    """Maximum time until an engine is ready; null: no limit."""

    @property
    def gpus_per_engine(self) -> int:
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def names(self) -> list[str]:
        """Names under which the engines serve the model; the first one appears in responses."""
        return list(dict.fromkeys([self.served_model_name or self.model, self.model]))

    @field_validator("replicas")
    @classmethod
    def _one(cls, value: int) -> int:
        if value != 1:
            raise ValueError("several model servers would use the same GPUs; set engine_replicas instead")
        return value

    @field_validator("extra_flags")
    @classmethod
    def _not_reserved(cls, value: Json | list[str]) -> Json | list[str]:
        for flag in value:
            name = str(flag).lstrip("-").partition("=")[0].replace("_", "-")
            if name in _RESERVED_FLAGS:
                raise ValueError(f"--{name} is not allowed in extra_flags; {_RESERVED_FLAGS[name]}")
        return value
