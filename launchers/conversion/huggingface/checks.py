"""Compares a written checkpoint with its source: names, types, shapes and bits of all tensors, then the logits."""

from __future__ import annotations

import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from transformers import AutoModelForCausalLM

from rollyard.launchers.conversion.huggingface.dcp_checkpoint import DcpCheckpoint
from rollyard.launchers.conversion.huggingface.model_config import ModelSkeleton
from rollyard.launchers.conversion.huggingface.stages import stage
from rollyard.launchers.conversion.huggingface.weights import Selection, same_values
from rollyard.records.errors import RunError

_PROMPT_TOKENS = 16
_TOLERANCE = 1e-5
"""Of the logits, relative to the largest. The weights are equal, so only the order of additions may differ."""
_LISTED = 5


def check_conversion(
    checkpoint: DcpCheckpoint,
    skeleton: ModelSkeleton,
    selection: Selection,
    folder: Path,
    report: Callable[[str], None],
) -> float:
    """Raise RunError if the folder does not hold the checkpoint's model. Returns the largest difference of logits."""
    values = checkpoint.read(name for name in checkpoint.tensors if name not in selection.left_out)
    _compare_tensors(values, selection, folder)
    report(f"Checked: {len(selection.written)} tensors equal the checkpoint's")
    hint = "policy.model_name or policy.hf_overrides of --dcp-config describes another model than the checkpoint's"
    with stage("loading the checkpoint's weights into the model", hint):
        expected = _logits(lambda: _from_state_dict(skeleton, values))
    values.clear()
    gc.collect()
    with stage("loading the converted checkpoint", hint):
        found = _logits(lambda: _from_folder(folder))
    difference = _difference(expected, found)
    report("Checked: the converted model's logits equal those of the checkpoint")
    return difference


def _compare_tensors(values: dict[str, torch.Tensor], selection: Selection, folder: Path) -> None:
    missing = set(selection.written)
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, framework="pt") as opened:
            for name in sorted(opened.keys()):
                if name not in missing:
                    raise RunError(
                        f"{file.name} holds {name}, which is not a tensor of the checkpoint, or is stored twice"
                    )
                missing.discard(name)
                if not same_values(opened.get_tensor(name), values[name]):
                    raise RunError(f"{name} differs from the checkpoint after writing; the disk may be damaged")
    if missing:
        raise RunError(f"{_listed(missing)} of the checkpoint were not written")


def _from_state_dict(skeleton: ModelSkeleton, values: dict[str, torch.Tensor]) -> Any:
    model, loaded = skeleton.model_class.from_pretrained(
        None, config=skeleton.config, state_dict=dict(values), dtype=skeleton.config.dtype, output_loading_info=True
    )
    _require_complete(loaded)
    return model


def _from_folder(folder: Path) -> Any:
    model, loaded = AutoModelForCausalLM.from_pretrained(folder, dtype="auto", output_loading_info=True)
    _require_complete(loaded)
    return model


def _require_complete(loaded: dict[str, Any]) -> None:
    for kind, meaning in (
        ("missing_keys", "are missing in the checkpoint"),
        ("unexpected_keys", "are not part of the model"),
        ("mismatched_keys", "have another shape than in the model"),
        ("error_msgs", "were reported as errors"),
    ):
        if found := loaded.get(kind):
            raise RunError(
                f"{_listed({str(name) for name in found})} {meaning}: policy.model_name or policy.hf_overrides of "
                "--dcp-config describes another model than the checkpoint's"
            )


def _logits(load: Callable[[], Any]) -> torch.Tensor:
    model = load().eval()
    vocabulary = model.config.get_text_config().vocab_size
    # Multiples of a prime: different ids from the whole vocabulary.
    prompt = (torch.arange(1, _PROMPT_TOKENS + 1) * 7919 % vocabulary).unsqueeze(0)
    with torch.inference_mode():
        logits: torch.Tensor = model(prompt).logits.float()
    return logits


def _difference(expected: torch.Tensor, found: torch.Tensor) -> float:
    if expected.shape != found.shape:
        raise RunError(
            f"the converted model has logits of shape {tuple(found.shape)}; expected {tuple(expected.shape)}"
        )
    if not torch.isfinite(expected).all():
        raise RunError(
            "the checkpoint's logits are not finite numbers: the training has diverged; convert an earlier step"
        )
    difference = float((expected - found).abs().max())
    if not difference <= _TOLERANCE * float(expected.abs().max()):
        raise RunError(f"the converted model's logits differ from those of the checkpoint by up to {difference:.3g}")
    return difference


def _listed(names: set[str]) -> str:
    shown = ", ".join(sorted(names)[:_LISTED])
    return f"{shown} and {len(names) - _LISTED} more tensors" if len(names) > _LISTED else shown
