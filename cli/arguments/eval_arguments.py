"""The arguments of ng_eval: a config file, keys of the config, settings of servers, flags and options."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, Field

from rollyard.cli.arguments.command_line import Options, option_name, read_command_line
from rollyard.cli.arguments.config_arguments import check_key, config_path, is_server_setting
from rollyard.launchers.evaluation.eval_config import EvalConfig, VllmSettings
from rollyard.launchers.evaluation.nemo_rl.run import NemoRlRun, read_nemo_rl
from rollyard.launchers.evaluation.pipeline.config_file import load_eval_config
from rollyard.records.errors import OperatorError
from rollyard.services.config.overrides.command_line import refuse_secrets
from rollyard.services.config.server_folders import search_roots
from rollyard.services.config.settings_file import search_path
from rollyard.services.config.yaml_files import find_config
from rollyard.services.rollouts.collection import CREATE_PARAMS
from rollyard.services.server.settings import COMMAND_LINE, parse_settings


class EvalOptions(EvalConfig, Options):
    """The keys of the config, and options of the command."""

    model_config = ConfigDict(validate_by_name=True)
    SUBJECT: ClassVar[str] = "config_path"

    config_path: str | None = None
    """YAML file with the keys below, also as the first argument: in this folder, configs/ or the installed package. A
    file for NeMo-RL's evaluation is converted."""
    dry_run: bool = False
    """Check everything and print the plan; start nothing."""
    json_output: bool = Field(default=False, alias="json")
    """Print the result as one JSON line."""
    watch_pattern: str = "*"
    """With --watch: glob pattern for the names of checkpoint folders."""
    watch_marker: str | None = None
    """With --watch: name of a file that marks a complete checkpoint; default: its safetensors index is complete."""
    poll_interval_s: float = Field(default=300.0, gt=0)
    """With --watch: interval between two searches for new checkpoints, in seconds."""
    detach: bool = False
    """Run in the background; `ng_eval status|pause|resume|stop` controls it."""
    watch: str | None = None
    """Folder or S3 URL: evaluate each checkpoint that appears in it."""
    once: bool = False
    """With --watch: evaluate the existing checkpoints and return."""


_OWN = tuple(
    field.alias or name for name, field in EvalOptions.model_fields.items() if name not in EvalConfig.model_fields
)

_BELOW = {"responses_create_params": CREATE_PARAMS, "vllm": VllmSettings.model_fields}


@dataclass(frozen=True)
class EvalArguments:
    """The parsed command line of ng_eval."""

    config: EvalConfig
    options: EvalOptions
    nemo_rl: NemoRlRun | None
    """The evaluation that `config` was converted from."""
    detach: bool
    watch: str | None
    """Folder or S3 URL of checkpoints to evaluate."""


def read_arguments(arguments: Sequence[str], here: Path) -> EvalArguments:
    """Parse the arguments. Raises OperatorError if they are invalid."""
    overrides, files = read_command_line(EvalOptions, arguments, rest=True)
    known = [option_name(name, field) for name, field in EvalOptions.model_fields.items()]
    own: dict[str, Any] = {one.top: one.value for one in overrides if one.top in _OWN}
    others = [one for one in overrides if one.top not in _OWN]
    refuse_secrets(others)
    path = config_path(files, own.get("config_path"))
    roots = search_roots(here)
    found = None if path is None else find_config(path, search_path(roots))
    servers = tuple(one.text for one in others if is_server_setting(one))
    nemo_rl = read_nemo_rl(found, [one for one in others if not is_server_setting(one)], servers) if found else None
    if nemo_rl is not None:
        config = nemo_rl.eval_config
    else:
        for override in others:
            check_key(override, known, _BELOW)
        config = load_eval_config(path, [one for one in others if not is_server_setting(one)], roots)
        config = config.model_copy(update={"overrides": (*config.overrides, *servers)})
    options = parse_settings(EvalOptions, {"output_dir": config.output_dir, **own}, COMMAND_LINE)
    if options.watch is not None and (config.model or config.policy_base_url or config.head):
        raise OperatorError("--watch evaluates checkpoints, so model, policy_base_url and head must not be set")
    return EvalArguments(config, options, nemo_rl, options.detach, options.watch)
