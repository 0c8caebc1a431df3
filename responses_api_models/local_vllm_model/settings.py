"""Settings of a local_vllm_model: the engine's options under vLLM's own names, and how many engines on which GPUs."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import Field, field_validator

from rollyard.responses_api_models.chat_engine.settings import ChatEngineSettings
from rollyard.services.types import Json

_OURS = {
    "host": "engine_host",
    "port": "nothing: each engine takes a free port",
    "uds": "nothing: engines listen on a port",
    "api-key": "nothing: each server makes a key of its own",
    "model": "model",
    "served-model-name": "served_model_name",
}
"""Flags that may not stand in `extra_flags` -> what to set instead."""


class LocalVllmModelSettings(ChatEngineSettings):
    """Engines that this server starts, and how they are spoken to. `model` is a folder or a name on the hub."""

    NOT_IDENTITY: ClassVar[frozenset[str]] = ChatEngineSettings.NOT_IDENTITY | {
        *("vllm_command", "engine_host", "engine_replicas", "gpus", "gpu_memory_utilization", "start_timeout_s"),
        *("tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "ray_address", "environment"),
        *("served_model_name", "enable_scale_out"),
    }

    served_model_name: str | None = None
    """Name of the model in answers and at /v1/models; default: `model`."""
    vllm_command: list[str] = Field(["vllm"], min_length=1)
    """What is run with `serve ...`: the vllm of another environment, by its path."""
    engine_replicas: int = Field(1, ge=1)
    """Engines, each on GPUs of its own; an episode stays on one. (`replicas` counts model servers and must be 1.)"""
    gpus: list[int | str] | None = None
    """GPUs to use, as CUDA_VISIBLE_DEVICES names them; default: all that are visible, none where there are none."""
    tensor_parallel_size: int = Field(1, ge=1)
    """GPUs that share each layer."""
    pipeline_parallel_size: int = Field(1, ge=1)
    """Groups of GPUs that share the layers out."""
    data_parallel_size: int = Field(1, ge=1)
    """Copies of the model behind one engine's door (for experts spread over GPUs; else prefer engine_replicas)."""
    dtype: str = "auto"
    """Of weights and activations."""
    gpu_memory_utilization: float | None = Field(None, gt=0, le=1)
    """Share of each GPU's memory that the engine takes; null: vLLM's default."""
    max_model_len: int | None = Field(None, ge=1)
    """Longest conversation in tokens; null: the model's own limit."""
    tool_call_parser: str | None = None
    """How the model writes tool calls (hermes, llama3_json, ...); null: the engine reads none."""
    reasoning_parser: str | None = None
    """How the model marks its reasoning (qwen3, deepseek_r1, ...); null: it stays in the content."""
    logprobs_mode: Literal["raw_logprobs", "processed_logprobs"] | None = "processed_logprobs"
    """Log probabilities before or after temperature and penalties; trainers compare with what was sampled from."""
    enable_scale_out: bool = True
    """Open vLLM's token-in endpoints (/inference/v1/generate, .../render). False for a vLLM that has no such flag."""
    ray_address: str | None = None
    """HOST:PORT of a Ray cluster (or auto), when one engine needs the GPUs of several machines."""
    environment: dict[str, str] = Field(default_factory=dict)
    """Further environment variables of the engines."""
    extra_flags: Json | list[str] = Field(default_factory=dict)
    """Further flags of `vllm serve`: {max_num_seqs: 64, enforce_eager: true} or ["--max-num-seqs", "64"]."""
    engine_host: str = "127.0.0.1"
    """Address that the engines bind. Their control endpoints ask for no key: beyond loopback anybody could use them."""
    start_timeout_s: float | None = Field(1800.0, gt=0)
    """How long an engine may take to get ready."""

    @property
    def gpus_per_engine(self) -> int:
        """GPUs of one engine."""
        return self.tensor_parallel_size * self.pipeline_parallel_size * self.data_parallel_size

    @property
    def names(self) -> list[str]:
        """Names that the engines answer to; the first is the one they show."""
        return list(dict.fromkeys([self.served_model_name or self.model, self.model]))

    @field_validator("replicas")
    @classmethod
    def _one(cls, value: int) -> int:
        if value != 1:
            raise ValueError("two model servers would take the same GPUs; set engine_replicas instead")
        return value

    @field_validator("extra_flags")
    @classmethod
    def _not_ours(cls, value: Json | list[str]) -> Json | list[str]:
        for flag in value:
            name = str(flag).lstrip("-").partition("=")[0].replace("_", "-")
            if name in _OURS:
                raise ValueError(f"--{name} does not belong here; set {_OURS[name]}")
        return value
