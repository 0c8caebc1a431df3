"""Translates settings of NeMo Gym's model servers to the names that Rollyard's servers use."""

from __future__ import annotations

from typing import Any

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json

_RENAMED = {"openai_default_headers": "default_headers"}
_KEYS = frozenset({"api_key", "openai_api_key"})
"""Null in many configs of judges, whose key comes from an environment variable that need not be set."""
_WITHOUT_EFFECT = frozenset({"debug", "num_concurrent_requests", "uses_interleaved_reasoning", "num_workers"})
"""Settings that change nothing for callers: log level, and limits that Rollyard's servers do not have."""
_SERVE_SETTINGS = frozenset(
    {"tensor_parallel_size", "pipeline_parallel_size", "data_parallel_size", "gpu_memory_utilization", "max_model_len"}
    | {"dtype", "tool_call_parser", "reasoning_parser", "logprobs_mode"}
)
"""Flags of `vllm serve` that local_vllm_model has as settings. The others go to `extra_flags`."""


def translated(implementation: str, raw: Json) -> tuple[Json, list[str]]:
    """Return the settings under Rollyard's names, and the names of those that have no effect."""
    without_effect = sorted(_WITHOUT_EFFECT & raw.keys())
    settings = {
        _RENAMED.get(key, key): value
        for key, value in raw.items()
        if key not in _WITHOUT_EFFECT and not (key in _KEYS and value is None)
    }
    if implementation == "local_vllm_model":
        settings = _with_serve_arguments(settings)
    return settings, without_effect


def _with_serve_arguments(raw: Json) -> Json:
    settings = {
        key: value for key, value in raw.items() if key not in ("hf_home", "vllm_serve_env_vars", "vllm_serve_kwargs")
    }
    environment = {
        **_mapping(raw, "vllm_serve_env_vars"),
        **({"HF_HOME": raw["hf_home"]} if raw.get("hf_home") else {}),
        **(settings.get("environment") or {}),
    }
    if environment:
        settings["environment"] = {key: str(value) for key, value in environment.items()}
    flags: dict[str, Any] = {}
    for key, value in _mapping(raw, "vllm_serve_kwargs").items():
        if value is None:
            continue
        (settings if key in _SERVE_SETTINGS else flags).setdefault(key, value)
    if flags:
        own = settings.get("extra_flags") or {}
        if not isinstance(own, dict):
            raise OperatorError(
                "vllm_serve_kwargs and a list of extra_flags cannot be combined; write both as mappings"
            )
        settings["extra_flags"] = {**flags, **own}
    return settings


def _mapping(raw: Json, key: str) -> Json:
    value = raw.get(key) or {}
    if not isinstance(value, dict):
        raise OperatorError(f"{key} is {value!r}; expected a mapping, {{key: value}}")
    return value
