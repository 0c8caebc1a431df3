"""Compares the settings of a run with those of the run that its folder already has."""

from __future__ import annotations

from pathlib import Path

import yaml
from pydantic import ValidationError

from rollyard.records.errors import OperatorError
from rollyard.records.io.json_differences import differences
from rollyard.records.types import Json
from rollyard.training.train_config import TrainConfig

MAY_CHANGE = (
    "output_dir",
    "head",
    "ray_head_node_address",
    "trainer_num_gpus",
    "ready_timeout_s",
    "loggers",
    "checkpoint_interval",
    "keep_checkpoints",
    "num_samples_in_parallel",
    "rollout_timeout_s",
    "max_attempts",
    "max_failure_rate",
    "weights",
    "evaluation.before_start",
    "evaluation.interval",
    "evaluation.num_samples_in_parallel",
    "optimizer.micro_token_budget",
    "optimizer.gradient_checkpointing",
    "optimizer.accelerate_config",
)
"""Settings that change neither the rollouts nor the gradients, so that a resumed run may have other ones."""
_ADDRESS = ("policy_base_url", "policy_api_key")
"""Overrides that say where the policy's endpoint is; a restarted one may have another port."""


def settings_yaml(config: TrainConfig) -> str:
    """Return the contents of config.yaml: every setting, defaults included."""
    return yaml.safe_dump(config.model_dump(mode="json"), sort_keys=False, allow_unicode=True)


def read_settings(path: Path) -> TrainConfig | None:
    """Return the settings of a run; None if there is no file. Raises OperatorError if they cannot be read."""
    try:
        return TrainConfig.model_validate(yaml.safe_load(path.read_bytes()))
    except FileNotFoundError:
        return None
    except (yaml.YAMLError, ValidationError) as error:
        raise OperatorError(
            f"{path} cannot be read ({str(error).splitlines()[0]}): it was changed, or written by another version of "
            "Rollyard. Restore it, or choose another output_dir"
        ) from error


def check_settings(before: TrainConfig, now: TrainConfig, root: Path) -> None:
    """Raise OperatorError with the names of the settings that a resumed run must not change."""
    changed = [
        f"{key} was {_shown(old)}, now {_shown(new)}"
        for key, old, new in differences(_compared(before), _compared(now))
        if not _may_change(key, now)
    ]
    if changed:
        raise OperatorError(
            f"{root} contains a run with other settings: {'; '.join(changed)}. Use the earlier settings to resume it, "
            "or choose another output_dir"
        )


def _compared(config: TrainConfig) -> Json:
    kept = [text for text in config.overrides if text.lstrip("+").partition("=")[0] not in _ADDRESS]
    return {**config.model_dump(mode="json"), "overrides": kept}


def _may_change(key: str, config: TrainConfig) -> bool:
    if key == "max_steps":
        # Other schedules depend on the number of steps from the first one on.
        return config.optimizer.lr_scheduler in ("constant", "constant_with_warmup")
    return any(key == known or key.startswith(f"{known}.") for known in MAY_CHANGE)


def _shown(value: Json | object) -> str:
    text = str(value)
    return text if len(text) <= 100 else f"{text[:100]}..."
