"""What a conversion needs from the config.yaml that NeMo-RL saves next to a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

from rollyard.records.errors import OperatorError
from rollyard.records.types import Record


class PolicyConfig(Record):
    """Settings below `policy`."""

    model_name: str
    """A name on the Hugging Face Hub, or a local folder."""
    tokenizer_name: str
    """As `model_name`; used if no tokenizer was saved with the checkpoint."""
    hf_overrides: dict[str, Any]
    """Changes to the model's config."""
    precision: str
    """The precision of training; empty if not set. The weights keep the precision of the checkpoint."""


def read_policy_config(file: Path) -> PolicyConfig:
    """Read the config. Raises OperatorError if it cannot be used."""
    try:
        loaded = yaml.safe_load(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise OperatorError(f"--dcp-config: cannot read {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise OperatorError(f"--dcp-config: {file} is not valid YAML: {' '.join(str(error).split())}") from error
    policy = loaded.get("policy") if isinstance(loaded, dict) else None
    if not isinstance(policy, dict):
        raise OperatorError(f"--dcp-config: {file} has no section 'policy'; give the config.yaml of the checkpoint")
    name = policy.get("model_name")
    if not isinstance(name, str) or not name:
        raise OperatorError(f"--dcp-config: policy.model_name of {file} is {name!r}; expected a model's name or folder")
    tokenizer = policy.get("tokenizer")
    tokenizer_name = tokenizer.get("name") if isinstance(tokenizer, dict) else None
    # NeMo-RL calls them hf_config_overrides since 0.4.
    overrides = policy.get("hf_config_overrides") or policy.get("hf_overrides") or {}
    if not isinstance(overrides, dict):
        raise OperatorError(f"--dcp-config: policy.hf_overrides of {file} is {overrides!r}; expected a mapping")
    return PolicyConfig(
        model_name=name,
        tokenizer_name=tokenizer_name if isinstance(tokenizer_name, str) and tokenizer_name else name,
        hf_overrides={str(key): value for key, value in overrides.items()},
        precision=str(policy.get("precision") or ""),
    )
