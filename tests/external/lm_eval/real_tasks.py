"""lm_eval's own tasks on the data of this machine: where they would ask the hub, they get the rows of a test."""

from __future__ import annotations

import importlib
import importlib.metadata
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollyard.services.types import Json

SEED = 42
FOLDERS = ("gsm8k", "hendrycks_math", "minerva_math", "mbpp", "humaneval")


class _NoCodeEval:
    """Stands for `evaluate`'s module that runs code, which is on the hub: no prompt needs it."""

    def compute(self, **given: object) -> tuple[Json, Json]:
        return {"pass@1": 0.0}, {}


def task(name: str, rows: Mapping[str, list[Json]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A task as lm_eval loads it, on `rows` by split."""
    # The last of them reads the version below itself.
    names = ("datasets", "evaluate", "lm_eval.tasks", "math_verify")
    datasets, evaluate, tasks, _ = map(importlib.import_module, names)
    version = importlib.metadata.version
    # minerva_math refuses every antlr but 4.11, which parses answers; a prompt needs none.
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "4.11.0" if name.startswith("antlr4") else version(name)
    )
    monkeypatch.setattr(evaluate, "load", lambda *_, **__: _NoCodeEval())
    made = datasets.DatasetDict({split: datasets.Dataset.from_list(found) for split, found in rows.items()})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: made)
    # All of lm_eval's thousands of tasks would take a quarter of a minute to read.
    folders = [Path(str(tasks.__file__)).parent / folder for folder in FOLDERS]
    return tasks.TaskManager(include_path=folders, include_defaults=False).load([name])["tasks"][name]


def asked(found: Any, shots: int) -> list[tuple[str, list[str]]]:
    """What lm_eval asks a model: prompt and stop strings of every row."""
    found.set_config(key="num_fewshot", value=shots)
    found.set_fewshot_seed(SEED)
    found.build_all_requests()
    return [(one.args[0], list(one.args[1]["until"])) for one in found.instances]


def filtered(found: Any, said: list[str]) -> dict[str, list[float]]:
    """lm_eval's exact_match of `said`, one answer a row, by filter."""
    for instance, text in zip(found.instances, said, strict=True):
        instance.resps = [text]
    found.apply_filters()
    return {
        name: [found.process_results(one.doc, [one.filtered_resps[name]])["exact_match"] for one in found.instances]
        for name in found.instances[0].filtered_resps
    }
