"""ModelSource: where the model of an evaluation comes from, by its shorthand in `model`, and how vLLM serves it."""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, NamedTuple

from rollyard.launchers.evaluation.eval_config import EvalConfig, PolicyApi, VllmSettings
from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.types import Json
from rollyard.records.variables import variable

NO_KEY = "EMPTY"
"""API key for endpoints that require none, as in vLLM's documentation."""
KEY_VARIABLE = "ROLLYARD_EVAL_POLICY_KEY"
"""Environment variable for the model's API key, which must not be visible in the list of processes."""
SERVED = "vllm/"
BUILTIN = "builtin"
_LOOPBACK = ("127.0.0.1", "::1", "localhost")
_HUB_NAME = re.compile(r"[\w.-]+/[\w.-]+")

_CONFIGS = {
    "chat": "responses_api_models/vllm_model/configs/vllm_model.yaml",
    "responses": "responses_api_models/openai_model/configs/openai_model.yaml",
}
_BUILTIN_CONFIG = "responses_api_models/builtin_model/configs/builtin_model.yaml"
_LOCAL_CONFIG = "responses_api_models/local_vllm_model/configs/local_vllm_model.yaml"


@dataclass(frozen=True)
class ModelSource:
    kind: Literal["served", "endpoint", "builtin", "configs", "running"]
    """`served`: by the vLLM of a local_vllm_model; `configs`: config_paths define the model server; `running`: a
    running stack has one."""
    name: str = ""
    base_url: str = ""
    """URL of the endpoint; empty if there is none yet."""
    api: PolicyApi = "chat"
    api_key: str = field(default=NO_KEY, repr=False)
    key_variable: str = ""
    """The environment variable from which the key was read."""

    @property
    def config_paths(self) -> tuple[str, ...]:
        if self.kind in ("builtin", "served"):
            return (_BUILTIN_CONFIG if self.kind == "builtin" else _LOCAL_CONFIG,)
        return (_CONFIGS[self.api],) if self.kind == "endpoint" else ()


def find_model(config: EvalConfig, environ: Mapping[str, str]) -> ModelSource:
    """Return the model of `config`. Raises OperatorError if it is ambiguous or unknown, or its API key is missing."""
    model, url = config.model, config.policy_base_url
    if config.head is not None:
        if model or url:
            raise OperatorError(
                f"head={config.head} uses a running stack, which has its own model server: remove "
                f"{'model' if model else 'policy_base_url'}"
            )
        return ModelSource("running")
    if url is not None:
        return _endpoint(config, url, environ)
    if model is None:
        if not config.config_paths:
            known = "vllm/<hub name or folder>, openai/<model>, builtin, or a name together with --policy-base-url ..."
            raise OperatorError(f"no model given; expected model={known}")
        return ModelSource("configs")
    if model == BUILTIN:
        return ModelSource("builtin", BUILTIN)
    provider, slash, name = model.partition("/")
    if model.startswith(SERVED):
        if not name:
            raise OperatorError("model='vllm/' names no model; expected vllm/<hub name or folder>")
        key = config.policy_api_key or variable(environ, "VLLM_API_KEY") or ""
        return ModelSource("served", config.vllm.served_model_name or name, api_key=key)
    if slash and name and provider in PROVIDERS:
        found = PROVIDERS[provider]
        key = config.policy_api_key or variable(environ, found.key_variable) or ""
        if not key:
            raise OperatorError(f"model={model} needs an API key: export {found.key_variable}=...")
        url = (environ.get(found.url_variable) if found.url_variable else None) or found.base_url
        api = config.policy_api or found.api
        return ModelSource("endpoint", name, url.rstrip("/"), api, api_key=key, key_variable=found.key_variable)
    known = ", ".join(sorted(PROVIDERS))
    hint = did_you_mean(provider, [*PROVIDERS, "vllm", BUILTIN]) if slash else did_you_mean(model, [BUILTIN])
    own = "" if slash else "; a model server of your own is chosen by --config-paths, without --model"
    raise OperatorError(
        f"model={model!r} does not say where the model runs{hint}: write vllm/{model} to serve it with vLLM, or add "
        f"policy_base_url=http://HOST:PORT/v1 if it is already served (known providers: {known}){own}"
    )


def _endpoint(config: EvalConfig, url: str, environ: Mapping[str, str]) -> ModelSource:
    if not url.startswith(("http://", "https://")):
        raise OperatorError(f"policy_base_url={url!r} is not a URL; expected http://HOST:PORT/v1")
    if config.model is None:
        raise OperatorError(f"--policy-base-url {url} needs --model ..., the name of the model at that endpoint")
    if config.model.startswith(SERVED) or config.model == BUILTIN:
        raise OperatorError(
            f"model={config.model} starts a model of its own, but policy_base_url={url} is an endpoint that is already "
            "running: remove one of them, or write the model's name as that endpoint lists it"
        )
    found = None if config.policy_api_key else variable(environ, "policy_api_key")
    key = config.policy_api_key or found or NO_KEY
    key_variable = "policy_api_key" if found else ""
    api = config.policy_api or "chat"
    return ModelSource("endpoint", config.model, url.rstrip("/"), api, api_key=key, key_variable=key_variable)


def model_of(config: EvalConfig) -> str:
    return str(config.model).removeprefix(SERVED)


def find_vllm(settings: VllmSettings, environ: Mapping[str, str]) -> tuple[str, ...]:
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


def check_served(config: EvalConfig, here: Path) -> None:
    """Raise OperatorError for a model that vLLM cannot serve, or a flag that is a setting of `ng_eval`."""
    for argument in config.vllm.args:
        flag = argument.partition("=")[0]
        if flag in ("--api-key", "--hf-token"):
            raise OperatorError(
                f"vllm.args contains {flag}, and a command line is visible to all users: use "
                f"{'policy_api_key' if flag == '--api-key' else 'the variable HF_TOKEN'} instead"
            )
        if flag in ("--port", "--host", "--served-model-name", "--model"):
            raise OperatorError(f"vllm.args contains {flag}: use the setting vllm.{flag[2:].replace('-', '_')} instead")
    model = model_of(config)
    folder = here / Path(model).expanduser()
    if folder.is_dir():
        if not (folder / "config.json").is_file():
            raise OperatorError(f"{folder} contains no config.json, so it is not a model that vLLM can serve")
    elif model.startswith(("/", ".", "~")) or not _HUB_NAME.fullmatch(model):
        raise OperatorError(f"model=vllm/{model}: {model!r} is neither a folder nor a hub name such as Qwen/Qwen3-4B")


def local_vllm_model(
    config: EvalConfig, source: ModelSource, here: Path, *, command: tuple[str, ...], log: Path, ray: str | None
) -> Json:
    """Return the settings of the local_vllm_model that serves the model, if they differ from those of its config file.

    A port that the user has chosen is meant for other programs too, which do not know a random key.
    """
    settings = config.vllm
    folder = here / Path(model_of(config)).expanduser()
    key = f"${{oc.env:{KEY_VARIABLE},null}}" if source.api_key else None
    if key is None and settings.port is not None and settings.host in _LOOPBACK:
        key = ""
    given: Json = {
        "model": str(folder) if folder.is_dir() else model_of(config),
        "served_model_name": source.name,
        "vllm_command": list(command),
        "engine_host": settings.host,
        "engine_port": settings.port,
        "engine_log": str(log),
        "api_key": key,
        "dtype": settings.dtype,
        "tensor_parallel_size": settings.tensor_parallel_size,
        "pipeline_parallel_size": settings.pipeline_parallel_size,
        "gpu_memory_utilization": settings.gpu_memory_utilization,
        "max_model_len": settings.max_model_len,
        "extra_flags": [*(["--trust-remote-code"] if settings.trust_remote_code else []), *settings.args],
        "ray_address": ray,
        "start_timeout_s": settings.ready_timeout_s,
        "health_timeout_s": settings.health_timeout_s,
    }
    # Only trainers need the last two, and a vLLM that is older does not have them.
    return {
        **{name: value for name, value in given.items() if value is not None},
        "tool_call_parser": settings.tool_call_parser,
        "uses_reasoning_parser": True,
        "enable_scale_out": False,
        "logprobs_mode": None,
    }


class Provider(NamedTuple):
    base_url: str
    key_variable: str
    """Environment variable that holds the API key."""
    api: PolicyApi = "chat"
    url_variable: str | None = None
    """Environment variable that replaces base_url, if the provider's own client has one."""


PROVIDERS = {
    "anthropic": Provider("https://api.anthropic.com/v1", "ANTHROPIC_API_KEY"),
    "deepseek": Provider("https://api.deepseek.com/v1", "DEEPSEEK_API_KEY"),
    "fireworks": Provider("https://api.fireworks.ai/inference/v1", "FIREWORKS_API_KEY"),
    "gemini": Provider("https://generativelanguage.googleapis.com/v1beta/openai", "GEMINI_API_KEY"),
    "groq": Provider("https://api.groq.com/openai/v1", "GROQ_API_KEY"),
    "mistral": Provider("https://api.mistral.ai/v1", "MISTRAL_API_KEY"),
    "nvidia": Provider("https://integrate.api.nvidia.com/v1", "NVIDIA_API_KEY"),
    "openai": Provider("https://api.openai.com/v1", "OPENAI_API_KEY", "responses", "OPENAI_BASE_URL"),
    "openrouter": Provider("https://openrouter.ai/api/v1", "OPENROUTER_API_KEY"),
    "together": Provider("https://api.together.xyz/v1", "TOGETHER_API_KEY"),
    "xai": Provider("https://api.x.ai/v1", "XAI_API_KEY"),
}
