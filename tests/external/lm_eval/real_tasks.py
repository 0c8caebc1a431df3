"""lm_eval's own tasks on local data: instead of a dataset of the Hub they get the rows of a test."""

from __future__ import annotations

import importlib
import importlib.metadata
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from rollyard.records.types import Json

SEED = 42
FOLDERS = ("gsm8k", "hendrycks_math", "minerva_math", "mbpp", "humaneval")


class _NoCodeEval:
    """Replaces the code evaluation module of `evaluate`, which is on the Hub and not needed for prompts."""

    def compute(self, **_: object) -> tuple[Json, Json]:
        return {"pass@1": 0.0}, {}


def task(name: str, rows: Mapping[str, list[Json]], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Load a task of lm_eval with `rows` (split -> rows) as its dataset."""
    # math_verify reads the version that is patched below when it is imported.
    names = ("datasets", "evaluate", "lm_eval.tasks", "math_verify")
    datasets, evaluate, tasks, _ = map(importlib.import_module, names)
    version = importlib.metadata.version
    # minerva_math requires antlr 4.11 to parse answers; prompts do not need it.
    monkeypatch.setattr(
        importlib.metadata, "version", lambda name: "4.11.0" if name.startswith("antlr4") else version(name)
    )
    monkeypatch.setattr(evaluate, "load", lambda *_, **__: _NoCodeEval())
    dataset = datasets.DatasetDict({split: datasets.Dataset.from_list(found) for split, found in rows.items()})
    monkeypatch.setattr(datasets, "load_dataset", lambda *_, **__: dataset)
    # Indexing all of lm_eval's thousands of tasks would take 15 s.
    folders = [Path(str(tasks.__file__)).parent / folder for folder in FOLDERS]
    with warnings.catch_warnings():
        # Compiling lm_eval's tasks warns about escape sequences. That only happens where the installer did not.
        warnings.filterwarnings("ignore", "invalid escape sequence")
        return tasks.TaskManager(include_path=folders, include_defaults=False).load([name])["tasks"][name]


def real_prompts(loaded: Any, shots: int) -> list[tuple[str, list[str]]]:
    """Prompt and stop strings that lm_eval sends for each row."""
    loaded.set_config(key="num_fewshot", value=shots)
    loaded.set_fewshot_seed(SEED)
    loaded.build_all_requests()
    return [(instance.args[0], list(instance.args[1]["until"])) for instance in loaded.instances]


def filtered(loaded: Any, answers: list[str]) -> dict[str, list[float]]:
    """Filter name -> lm_eval's exact_match of `answers`, one per row."""
    for instance, text in zip(loaded.instances, answers, strict=True):
        instance.resps = [text]
    loaded.apply_filters()
    return {
        name: [
            loaded.process_results(instance.doc, [instance.filtered_resps[name]])["exact_match"]
            for instance in loaded.instances
        ]
        for name in loaded.instances[0].filtered_resps
    }
