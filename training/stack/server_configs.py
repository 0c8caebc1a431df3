"""ServerConfigs: the configs of the servers that a training run starts."""

from __future__ import annotations

import socket
from collections.abc import Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import yaml

from rollyard.records.errors import OperatorError
from rollyard.records.io.jsonl import replace
from rollyard.records.io.own_command import own_command
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.overrides import parse_overrides
from rollyard.services.config.overrides.command_line import as_override
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.server_folders import search_roots
from rollyard.services.config.yaml_files import find_config, read_yaml
from rollyard.training.stack.policy_config import policy_config, trainer_overrides
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
