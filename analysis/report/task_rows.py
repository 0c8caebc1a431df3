"""Writes one row per task, with the same keys as NeMo Gym's profiled datasets, for use in filters and curricula."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import orjson

from rollyard.analysis.metrics.per_task import MOST_K, PerTask
from rollyard.analysis.metrics.profile import Run
from rollyard.records.data_files import DataFile
from rollyard.records.errors import RunError
from rollyard.records.rows import exact_objects
from rollyard.records.types import Json


def task_rows(run: Run, pass_threshold: float | None, inputs: DataFile | None) -> Iterator[bytes]:
    """Yield a JSON line for each measured task, ordered by index. If `inputs` is given, the line includes the dataset's
    row.

    Raises OperatorError if the dataset cannot be read, and RunError if it contains an invalid line or has no row for a
    measured task.
    """
    grouped = run.by_task
    if grouped is None:
        return
    rows = None if inputs is None else enumerate(exact_objects(inputs, RunError))
    consensus = _majority_correct(grouped)
    for index, task in enumerate(grouped.task.tolist()):
        row: Json = {}
        if rows is not None:
            dataset_row = next((line.value for number, line in rows if number == task), None)
            if dataset_row is None:
                raise RunError(f"{inputs} has no row {task + 1}, but {run.profile.path} has rollouts for task {task}")
            row = dataset_row
        first, count = int(grouped.starts[index]), int(grouped.measured[index])
        own = run.columns.reward[first : first + count]
        found: Json = {
            "_ng_task_index": task,
            "avg_reward": float(grouped.mean[index]),
            "std_reward": float(grouped.std[index]),
            "min_reward": float(grouped.min[index]),
            "max_reward": float(grouped.max[index]),
            "median_reward": float(np.median(own)),
            "total_samples": count,
            "expected_samples": run.profile.coverage.repeats,
        }
        if grouped.solved is not None:
            passed = int(grouped.solved[index])
            found |= {"pass_rate": passed / count, "pass_rate_total": count, "pass_rate_passed": passed}
            found["pass_threshold"] = pass_threshold
            if consensus is not None:
                found["majority_correct"] = consensus[index]
        yield orjson.dumps({**row, **found}) + b"\n"


def _majority_correct(grouped: PerTask) -> list[bool | None] | None:
    """Return whether the most common answer of all rollouts of each task is right (cons@k with all rollouts).

    It is None for tasks with more rollouts than `consensus.MOST_K`. Returns None if cons@k is undefined.
    """
    if grouped.votes is None:
        return None
    found: list[bool | None] = [None] * len(grouped)
    for one in grouped.votes:
        if one.rollouts <= MOST_K:
            for task, share in zip(one.tasks.tolist(), one.shares[:, one.rollouts - 1].tolist(), strict=True):
                found[task] = share == 1.0
    return found
