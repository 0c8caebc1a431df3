"""ModelSource: where the model of an evaluation comes from, by its shorthand in `model`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from rollyard.launchers.evaluation.eval_config import EvalConfig
from rollyard.launchers.evaluation.pipeline.providers import PROVIDERS, PolicyApi
from rollyard.records.errors import OperatorError, did_you_mean

NO_KEY = "EMPTY"
"""API key for endpoints that require none, as in vLLM's documentation."""
SERVED = "vllm/"
BUILTIN = "builtin"

_CONFIGS = {
    "chat": "responses_api_models/vllm_model/configs/vllm_model.yaml",
    "responses": "responses_api_models/openai_model/configs/openai_model.yaml",
}
_BUILTIN_CONFIG = "responses_api_models/builtin_model/configs/builtin_model.yaml"


@dataclass(frozen=True)
class ModelSource:
    """The model to evaluate."""

    kind: Literal["served", "endpoint", "builtin", "configs", "running"]
    """`served`: by vLLM, which the evaluation starts; `configs`: config_paths define the model server; `running`: a
    running stack has one."""
    name: str = ""
    """The model's name in requests."""
    base_url: str = ""
    """URL of the endpoint; empty if there is none yet."""
    api: PolicyApi = "chat"
    api_key: str = field(default=NO_KEY, repr=False)
    key_variable: str = ""
    """The environment variable from which the key was read."""

    @property
    def config_paths(self) -> tuple[str, ...]:
        """The config file of the model server."""
        if self.kind == "builtin":
            return (_BUILTIN_CONFIG,)
        return (_CONFIGS[self.api],) if self.kind in ("served", "endpoint") else ()


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
        return ModelSource("served", config.vllm.served_model_name or name, api_key=config.policy_api_key or "")
    if slash and name and provider in PROVIDERS:
        return _hosted(config, provider, name, environ)
    raise OperatorError(_unknown(model, provider))


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
    key = config.policy_api_key or environ.get("policy_api_key") or NO_KEY
    variable = "policy_api_key" if not config.policy_api_key and environ.get("policy_api_key") else ""
    api = config.policy_api or "chat"
    return ModelSource("endpoint", config.model, url.rstrip("/"), api, api_key=key, key_variable=variable)


def _hosted(config: EvalConfig, provider: str, name: str, environ: Mapping[str, str]) -> ModelSource:
    found = PROVIDERS[provider]
    key = config.policy_api_key or environ.get(found.key_variable)
    if not key:
        raise OperatorError(f"model={config.model} needs an API key: export {found.key_variable}=...")
    url = (environ.get(found.url_variable) if found.url_variable else None) or found.base_url
    api = config.policy_api or found.api
    return ModelSource("endpoint", name, url.rstrip("/"), api, api_key=key, key_variable=found.key_variable)


def _unknown(model: str, provider: str) -> str:
    known = ", ".join(sorted(PROVIDERS))
    hint = did_you_mean(provider, [*PROVIDERS, "vllm", BUILTIN]) if "/" in model else did_you_mean(model, [BUILTIN])
    own = "" if "/" in model else "; a model server of your own is chosen by --config-paths, without --model"
    return (
        f"model={model!r} does not say where the model runs{hint}: write vllm/{model} to serve it with vLLM, or add "
        f"policy_base_url=http://HOST:PORT/v1 if it is already served (known providers: {known}){own}"
    )
