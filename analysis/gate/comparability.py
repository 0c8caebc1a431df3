"""Finds the differences between two runs that make a comparison of their results unfair."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.profile import Run
from rollyard.records.io.json_differences import differences
from rollyard.records.io.jsonl import iter_jsonl, skip
from rollyard.records.types import Json

TASKS = "tasks"
"""The name under which runs with different tasks can be allowed."""
_MODEL_KEYS = frozenset({"model", "model_name", "openai_model", "model_path", "tokenizer"})
"""Settings that name the model, which is what a gate compares."""
_NOT_SAMPLING = frozenset({"input", "instructions", "tools", "metadata", "model"})
_SAMPLED = ("agent_name", "num_repeats", "num_repeats_add_seed", "responses_create_params", "settings")
"""Keys of the manifest's identity that are compared. Inputs are compared by their tasks instead."""


def setting_differences(baseline: Run, candidate: Run) -> tuple[list[tuple[str, str, str]], str]:
    """Return the name and both values of each differing setting, and a note on what was compared.

    The settings are those of the manifests. Without a manifest, the create parameters of the first rows are compared.
    """
    identities = [run.profile.identity for run in (baseline, candidate)]
    if identities[0] is not None and identities[1] is not None:
        before, after = ({key: one[key] for key in _SAMPLED if key in one} for one in identities if one is not None)
        note = ""
    else:
        before, after = ({"responses_create_params": _first_parameters(run)} for run in (baseline, candidate))
        without = " and ".join(
            run.profile.name for run, found in zip((baseline, candidate), identities, strict=True) if found is None
        )
        note = f"Without the manifest of {without}, only the sampling parameters of the first rows are compared."
    found = [
        (displayable(name), _shown(old), _shown(new))
        for name, old, new in differences(before, after)
        if name.rpartition(".")[2] not in _MODEL_KEYS
    ]
    return found, note


def refused(names: Sequence[str], allowed: Sequence[str]) -> list[str]:
    """Return the names that are not allowed to differ. An allowed name includes all settings below it."""
    return [name for name in names if not any(name == one or name.startswith(f"{one}.") for one in allowed)]


def _first_parameters(run: Run) -> Json:
    if run.file is None:
        return {}
    for line in iter_jsonl(run.file, skip):
        parameters = line.value.get("responses_create_params")
        if isinstance(parameters, dict):
            return {key: value for key, value in parameters.items() if key not in _NOT_SAMPLING}
    return {}


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "set"
    return "not set" if value is None else displayable(str(value))
