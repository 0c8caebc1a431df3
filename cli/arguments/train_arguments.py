"""The arguments of ng_train: a config file, keys of the config, settings of servers, and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import BaseModel, ConfigDict

from rollyard.cli.arguments.command_line import Options, read_command_line
from rollyard.cli.arguments.config_arguments import check_key, config_path, is_server_setting
from rollyard.services.config.overrides.command_line import refuse_secrets
from rollyard.services.config.server_folders import search_roots
from rollyard.services.config.settings_file import load_settings
from rollyard.services.rollouts.collection import CREATE_PARAMS
from rollyard.services.server.settings import COMMAND_LINE, parse_settings
from rollyard.training.train_config import TrainConfig


class TrainOptions(TrainConfig, Options):
    """The keys of the config, and options of the command."""

    model_config = ConfigDict(validate_by_name=True)
    SUBJECT: ClassVar[str] = "config_path"

    config_path: str | None = None
    """YAML file with the keys below, also as the first argument: in this folder, configs/ or the installed package."""
    dry_run: bool = False
    """Check everything and print the plan; start nothing."""


_OWN = tuple(name for name in TrainOptions.model_fields if name not in TrainConfig.model_fields)
_NESTED = {
    name: field.annotation.model_fields
    for name, field in TrainConfig.model_fields.items()
    if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
}
"""Key -> keys below it."""


@dataclass(frozen=True)
class TrainArguments:
    """The parsed command line of ng_train."""

    config: TrainConfig
    options: TrainOptions


def read_arguments(arguments: Sequence[str], here: Path) -> TrainArguments:
    """Parse the arguments. Raises OperatorError if they are invalid."""
    overrides, files = read_command_line(TrainOptions, arguments, rest=True)
    own: dict[str, Any] = {one.top: one.value for one in overrides if one.top in _OWN}
    others = [one for one in overrides if one.top not in _OWN]
    refuse_secrets(others)
    for override in others:
        check_key(override, list(TrainOptions.model_fields), {"responses_create_params": CREATE_PARAMS, **_NESTED})
    keys = [one for one in others if not is_server_setting(one)]
    config = load_settings(TrainConfig, config_path(files, own.get("config_path")), keys, search_roots(here))
    servers = (one.text for one in others if is_server_setting(one))
    # Absolute, because the engines read weights from it.
    output_dir = here / config.output_dir.expanduser()
    config = config.model_copy(update={"overrides": (*config.overrides, *servers), "output_dir": output_dir})
    required = {"model": config.model, "output_dir": config.output_dir}
    return TrainArguments(config, parse_settings(TrainOptions, {**required, **own}, COMMAND_LINE))
