"""The model that `policy.model_name` and `hf_overrides` describe, without its weights."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, GenerationConfig

from rollyard.launchers.conversion.huggingface.dcp_checkpoint import DcpCheckpoint
from rollyard.launchers.conversion.huggingface.stages import stage
from rollyard.launchers.conversion.policy_config import PolicyConfig


@dataclass(frozen=True)
class ModelSkeleton:
    """A model on torch's device `meta`."""

    config: Any
    model_class: Any
    tied: dict[str, str]
    """Names of parameters that share the weights of another, and that other."""
    computed_buffers: frozenset[str]
    """Buffers that the model computes itself and does not store."""
    generation_config: Any


def load_skeleton(policy: PolicyConfig, checkpoint: DcpCheckpoint) -> ModelSkeleton:
    """Load the config and set its data type to that of the checkpoint. Raises RunError if it cannot be loaded."""
    hint = "Check policy.model_name and policy.hf_overrides of --dcp-config"
    with stage(f"loading the model config {policy.model_name}", hint):
        config = AutoConfig.from_pretrained(policy.model_name, **policy.hf_overrides)
        config.dtype = main_dtype(checkpoint)
        with torch.device("meta"):
            model = AutoModelForCausalLM.from_config(config)
        config.architectures = [type(model).__name__]
    first: dict[int, str] = {}
    tied = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        if (original := first.setdefault(id(parameter), name)) != name:
            tied[name] = original
    stored = set(model.state_dict())
    computed = frozenset(name for name, _ in model.named_buffers() if name not in stored)
    return ModelSkeleton(config, type(model), tied, computed, _generation_config(policy.model_name, config))


def main_dtype(checkpoint: DcpCheckpoint) -> torch.dtype:
    """Return the floating-point type of most parameters."""
    sizes: Counter[torch.dtype] = Counter()
    for entry in checkpoint.tensors.values():
        if entry.dtype.is_floating_point:
            sizes[entry.dtype] += entry.size
    return sizes.most_common(1)[0][0] if sizes else torch.float32


def _generation_config(name: str, config: Any) -> Any:
    if Path(name).is_dir() and not (Path(name) / "generation_config.json").is_file():
        return GenerationConfig.from_model_config(config)
    try:
        return GenerationConfig.from_pretrained(name)
    except OSError:  # the model has none
        return GenerationConfig.from_model_config(config)
