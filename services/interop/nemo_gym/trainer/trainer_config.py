"""Merges the config of a run that a trainer starts: its files, then env.yaml, then what the trainer passes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from pydantic import ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.types import Json
from rollyard.services.config.load import load
from rollyard.services.config.run_config import RunConfig
from rollyard.services.config.yaml_files import find_config, read_yaml
from rollyard.services.interop.nemo_gym.trainer.names import (
    HEAD_SERVER_KEY_NAME,
    BaseServerConfig,
    GlobalConfigDictParserConfig,
)
from rollyard.services.interop.nemo_gym.trainer.settings import CollectionSettings

PATHS_KEY = "config_paths"
DEFAULT_HEAD_PORT = 11000


@dataclass(frozen=True)
class TrainerConfig:
    """What RunHelper starts."""

    run: RunConfig
    head_port: int
    settings: CollectionSettings


def trainer_config(
    given: GlobalConfigDictParserConfig, roots: Sequence[Path], environ: Mapping[str, str]
) -> TrainerConfig:
    """Merge and check the config. Raises OperatorError if it is invalid, or needs what Rollyard does not have.

    Settings of how NeMo Gym places and connects its servers have no effect: `default_host`, `port_range_low`,
    `port_range_high`, `ray_head_node_address`, `uv_venv_dir`, `global_aiohttp_connector_limit` and the like. The
    servers listen on free ports of 127.0.0.1, and no limit on connections is needed.
    """
    if not given.skip_load_from_cli:
        raise OperatorError(
            "skip_load_from_cli is false, but the command line belongs to the trainer: pass the settings in "
            "initial_global_config_dict with skip_load_from_cli=True, or start the servers with ng_run"
        )
    initial = _initial(given.initial_global_config_dict)
    if (capture := initial.get("token_id_capture")) and (not isinstance(capture, dict) or capture.get("enabled")):
        raise OperatorError(
            "token_id_capture is enabled, but Rollyard returns tokens on the output items only: set "
            "token_capture.enabled to false in the trainer's config"
        )
    env_file = None if given.skip_load_from_dotenv else given.dotenv_path or roots[0] / "env.yaml"
    from_env: Json = {}
    if env_file is not None and env_file.is_file():
        from_env = _plain(read_yaml(env_file))
    paths = _all_paths(initial.get(PATHS_KEY) or from_env.get(PATHS_KEY), roots)
    layers: list[str | Mapping[str, Any]] = [*map(str, paths), *([from_env] if from_env else []), initial]
    run = load(layers, [], roots, environ, env_file=None)
    return TrainerConfig(run, _head_port(run.tree.get(HEAD_SERVER_KEY_NAME)), CollectionSettings.of_config(run.tree))


def _initial(given: Any) -> Json:
    if given is None:
        return {}
    if isinstance(given, DictConfig):
        return _plain(given)
    if isinstance(given, Mapping):
        return _plain(OmegaConf.create(dict(given)))
    kind = type(given).__name__
    raise OperatorError(f"initial_global_config_dict is a {kind}; expected a mapping or an OmegaConf DictConfig")


def _plain(config: DictConfig) -> Json:
    """Return the content without resolving references, which may refer to other files."""
    plain = OmegaConf.to_container(config, resolve=False)
    assert isinstance(plain, dict)
    return {str(key): value for key, value in plain.items()}


def _all_paths(given: Any, roots: Sequence[Path]) -> list[Path]:
    """Return the config files, followed by those that they list under `config_paths`, each once."""
    if given is None:
        given = []
    if not isinstance(given, list) or not all(isinstance(path, str) for path in given):
        raise OperatorError(f"{PATHS_KEY} is {given!r}; expected a list of file names")
    found: list[Path] = []
    waiting = [find_config(path, roots).absolute() for path in given]
    while waiting:
        path = waiting.pop(0)
        if path in found:
            continue
        found.append(path)
        nested = _plain(read_yaml(path)).get(PATHS_KEY) or []
        waiting += [find_config(str(name), roots).absolute() for name in nested]
    return found


def _head_port(given: Any) -> int:
    if given is None:
        return DEFAULT_HEAD_PORT
    try:
        return BaseServerConfig.model_validate({"host": "127.0.0.1", "port": DEFAULT_HEAD_PORT, **given}).port
    except (ValidationError, TypeError) as error:
        raise OperatorError(f"{HEAD_SERVER_KEY_NAME} is {given!r}; expected {{host: ..., port: ...}}") from error
