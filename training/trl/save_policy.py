"""Saves the policy of a trainer as a Hugging Face folder, also if its weights are sharded or adapters."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from peft import PeftModel
from peft.tuners.lora import LoraLayer
from safetensors import SafetensorError

from rollyard.records.errors import OperatorError, RunError
from rollyard.records.locked_files import set_default_mode

AdapterMode = Literal["merge", "adapter"]
_PEFT_PREFIX = "base_model.model."


def gather_policy(trainer: Any, *, lora: AdapterMode = "merge") -> Callable[[Path], None] | None:
    """Gather the weights, and return a function that saves model and tokenizer into a folder, as safetensors, in the
    type that the weights have; None except in the main process.

    `lora`: whether adapters are merged into the weights, so that the folder is a whole model, or saved alone, as peft's
    adapter folder. Every process has to call this, because sharded weights are gathered. The function has to be called
    before the next update: without shards it reads the weights that the trainer changes.
    """
    accelerator = trainer.accelerator
    state: dict[str, torch.Tensor] = accelerator.get_state_dict(trainer.model_wrapped)
    if not accelerator.is_main_process:
        return None
    model = accelerator.unwrap_model(trainer.model_wrapped)
    return partial(write_policy, model, trainer.processing_class, lora=lora, state=state)


def write_policy(
    model: Any,
    tokenizer: Any,
    folder: Path,
    *,
    lora: AdapterMode = "merge",
    state: dict[str, torch.Tensor] | None = None,
) -> None:
    """Save a model that this process has as a whole. `state`: its weights by name, if they were gathered.

    Raises RunError if a file cannot be written.
    """
    merges = isinstance(model, PeftModel) and lora == "merge"
    merged = _merged(model, model.state_dict() if state is None else state) if merges else None
    with write_errors(folder):
        if merged is not None:
            model.get_base_model().save_pretrained(folder, state_dict=merged)
        else:
            model.save_pretrained(folder, state_dict=state)
        set_default_mode(folder.glob("*.safetensors"))
        if isinstance(model, PeftModel) and not merges:
            return
        tokenizer.save_pretrained(folder)


@contextmanager
def write_errors(folder: Path) -> Iterator[None]:
    """Raise RunError with the folder's name if a file cannot be written, as on a full disk."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        raise RunError(f"cannot write {folder}: {getattr(error, 'strerror', None) or error}") from error
    except RuntimeError as error:
        # What torch.save raises. Its text has a position in the file, but not the reason.
        if "inline_container" not in str(error):
            raise
        free = shutil.disk_usage(folder).free >> 20
        raise RunError(f"cannot write {folder}: torch.save failed, with {free:,} MiB free on the disk") from error


def _merged(model: Any, state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the weights with the active adapters added, under the names of the model without adapters."""
    merged = {
        name.removeprefix(_PEFT_PREFIX).replace(".base_layer.", "."): value
        for name, value in state.items()
        if ".lora_" not in name
    }
    with torch.no_grad():
        for name, layer in model.named_modules():
            if not isinstance(layer, LoraLayer):
                continue
            target = f"{name.removeprefix(_PEFT_PREFIX)}.weight"
            for adapter in layer.active_adapters:
                merged[target] = merged[target] + _difference(name, layer, adapter, state).to(merged[target])
    return merged


def _difference(name: str, layer: Any, adapter: str, state: dict[str, torch.Tensor]) -> torch.Tensor:
    down, up = state.get(f"{name}.lora_A.{adapter}.weight"), state.get(f"{name}.lora_B.{adapter}.weight")
    if down is None or up is None or down.ndim != 2 or layer.use_dora.get(adapter) or layer.lora_bias.get(adapter):
        raise OperatorError(
            f"the adapter of {name} cannot be merged: only plain LoRA of linear layers can. Save it as an adapter"
        )
    difference = (up.float() @ down.float()) * layer.scaling[adapter]
    return difference.T if getattr(layer, "fan_in_fan_out", False) else difference
