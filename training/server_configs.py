"""The configs of the servers that a training run starts, with that of the policy's model server and its vLLM engine."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from rollyard.records.errors import OperatorError, did_you_mean
from rollyard.records.jsonl import replace
from rollyard.records.script import own_command
from rollyard.records.types import Json
from rollyard.services.config.load import find_config, load, read_yaml
from rollyard.services.config.overrides import as_override, parse_overrides
from rollyard.services.config.plugins import search_roots
from rollyard.services.config.run_config import RunConfig
from rollyard.training.train_config import TrainConfig

_HEADER = "# Written by ng_train: the policy's model server. The run's config_paths and overrides take precedence.\n"


@dataclass(frozen=True)
class ServerConfigs:
    """What `ng_run` is started with."""

    policy: Json | None
    """The model server of the policy; None if the user's configs define it."""
    paths: tuple[str, ...]
    """Config files of the environments, and the user's."""
    overrides: tuple[str, ...]
    run_config: RunConfig

    def command(self, config: TrainConfig, policy_file: Path, logs: Path) -> list[str]:
        """Return the `ng_run` of these servers, after writing the config of the policy."""
        paths = list(self.paths)
        if self.policy is not None:
            policy_file.parent.mkdir(parents=True, exist_ok=True)
            replace(policy_file, (_HEADER + yaml.safe_dump(self.policy, sort_keys=False)).encode())
            paths.insert(0, str(policy_file.absolute()))
        options = {
            "config_paths": paths,
            "head_port": 0,
            "private": True,
            "log_folder": str(logs.absolute()),
            "ready_timeout_s": config.ready_timeout_s,
        }
        if config.ray_head_node_address is not None:
            options["ray_head_node_address"] = config.ray_head_node_address
        given = [as_override(key, value) for key, value in options.items()]
        return own_command("ng_run", *given, *self.overrides)


def server_configs(
    config: TrainConfig, model: str, gpus: Sequence[str] | None, environ: Mapping[str, str], here: Path
) -> ServerConfigs:
    """Return the configs of the servers that `config` names. Raises OperatorError if they are invalid.

    `model`: the folder or hub name that the engine starts with. `gpus`: the GPUs of this host, None if it has none.
    """
    roots = search_roots(here)
    environments = [f"resources_servers/{name}/configs/{name}.yaml" for name in config.environments]
    paths = tuple(dict.fromkeys([*environments, *config.config_paths]))
    if not paths:
        raise OperatorError("no environment given; expected --environments gsm8k or --config-paths [...]")
    policy = None
    if not any(_defines(config.policy_server, path, roots) for path in paths):
        policy = policy_config(config, model, gpus, port=_free_port(), trainers=trainer_processes(config))
    given: list[str | Json] = [*([] if policy is None else [policy]), *paths]
    run_config = load(given, parse_overrides(config.overrides), roots, environ)
    overrides = (*config.overrides, *trainer_overrides(run_config, config.policy_server))
    run_config = load(given, parse_overrides(overrides), roots, environ)
    return ServerConfigs(policy, paths, overrides, run_config)


def trainer_processes(config: TrainConfig) -> int:
    """Return the number of processes that accelerate's config file starts on this host; 1 without such a file."""
    path = config.optimizer.accelerate_config
    return 1 if path is None else int(read_yaml(path).get("num_processes") or 1)


def _defines(name: str, path: str, roots: Sequence[Path]) -> bool:
    """Return whether a config file defines the server `name`, and does not only change settings of it."""
    family = read_yaml(find_config(path, roots)).get(name, {}).get("responses_api_models", {})
    return any("entrypoint" in settings for settings in family.values())


def _free_port() -> int:
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        return int(listener.getsockname()[1])


IMPLEMENTATIONS = ("local_vllm_model", "vllm_model")
"""Model servers whose weights a trainer can update."""
_SHARED_GPU = 0.4
"""Share of a GPU's memory for the engine if the trainer uses the same GPU."""
_RANKS = (8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM (0.32) accepts as --max-lora-rank."""
_CPU_CACHE_BYTES = 1 << 30
"""Otherwise, vLLM takes most of the host's memory for its KV cache."""
_CPU_ENVIRONMENT = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",  # vLLM would pin its threads to cores that the trainer uses, too
    "TORCHDYNAMO_DISABLE": "1",  # otherwise the first log-probabilities compile for half a minute
}


def policy_config(config: TrainConfig, model: str, gpus: Sequence[str] | None, *, port: int, trainers: int = 1) -> Json:
    """Return the config of a `local_vllm_model` that serves `model`, a folder or a hub name.

    `gpus`: the GPUs of this host; None if there are none. The first `trainers` of them are left to the trainer's
    processes, except on a Ray cluster. The port is fixed, because the trainer calls a model server that restarts at the
    same address.
    """
    settings: dict[str, Any] = {
        "entrypoint": "app.py",
        "port": port,
        "model": model,
        "served_model_name": "policy",
        "dtype": config.optimizer.dtype,
        "tool_call_parser": "hermes",
        "uses_reasoning_parser": False,
        # The grammar of a strict tool changes the distribution that tokens are sampled from.
        "strict_tools": False,
        "trainer_endpoints": True,
        "return_token_id_information": True,
    }
    beside = Path(sys.executable).with_name("vllm")
    if beside.is_file():  # an environment that is not activated is not on the PATH
        settings["vllm_command"] = [str(beside)]
    flags: dict[str, Any] = {}
    if (lora := config.optimizer.lora) is not None:
        flags |= {"enable_lora": True, "max_lora_rank": next(rank for rank in _RANKS if rank >= lora.rank)}
    if gpus is None:
        settings["environment"] = _CPU_ENVIRONMENT
        flags |= {"enforce_eager": True, "kv_cache_memory_bytes": _CPU_CACHE_BYTES}
    elif config.ray_head_node_address is not None:
        pass  # the engine is placed on another host, perhaps, and takes the GPUs that it finds there
    elif len(gpus) <= trainers:
        settings |= {"gpus": [gpus[-1]], "gpu_memory_utilization": _SHARED_GPU}
    else:
        settings |= {"gpus": list(gpus[trainers:]), "engine_replicas": len(gpus) - trainers}
    if flags:
        settings["extra_flags"] = flags
    return {config.policy_server: {"responses_api_models": {"local_vllm_model": settings}}}


def trainer_overrides(run_config: RunConfig, policy_server: str) -> tuple[str, ...]:
    """Return the overrides with which a model server of the user's own configs can be trained.

    Raises OperatorError if it cannot.
    """
    models = [spec for spec in run_config.servers if spec.family == "responses_api_models"]
    spec = next((one for one in models if one.name == policy_server), None)
    if spec is None:
        names = [one.name for one in models]
        raise OperatorError(
            f"policy_server={policy_server} is not a model server of the configs{did_you_mean(policy_server, names)} "
            f"(available: {', '.join(names) or 'none'})"
        )
    if spec.implementation not in IMPLEMENTATIONS:
        raise OperatorError(
            f"{policy_server} is a {spec.implementation}, whose weights cannot be updated; expected one of "
            f"{', '.join(IMPLEMENTATIONS)}. Without a model server in config_paths, ng_train starts one"
        )
    prefix = f"{policy_server}.responses_api_models.{spec.implementation}"
    return tuple(
        f"+{as_override(f'{prefix}.{name}', True)}" for name in ("trainer_endpoints", "return_token_id_information")
    )
