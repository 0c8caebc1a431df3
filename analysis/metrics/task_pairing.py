"""Pairs each task of one run with the same task of another run."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from rollyard.analysis.metrics.loader.columns import Columns, Floats, Ints
from rollyard.analysis.metrics.per_task import PerTask
from rollyard.analysis.metrics.profile import Run

SAME_INPUT = "index"
"""Tasks are paired by index, because the manifests show that both runs had the same input."""
BY_CONTENT = "content"
"""Tasks are paired by `_ng_task_key`, which the collector writes."""
BY_PROMPT = "prompt"
"""Tasks are paired by prompt and tools, which must be unique among the tasks of each run."""


@dataclass(frozen=True)
class Side:
    """The tasks of one run, with duplicate tasks merged. All arrays have the same length."""

    key: Ints
    """Keys that identify the tasks, in ascending order."""
    task: Ints
    """Index of the first task with this key."""
    measured: Ints
    mean: Floats
    solve_rate: Floats | None
    index: Ints
    """Index in `key` of each task of the run. Its length is the number of tasks before merging."""


@dataclass(frozen=True)
class Pairing:
    """The tasks that two runs have in common."""

    by: str
    """How tasks are paired: SAME_INPUT, BY_CONTENT or BY_PROMPT; '' if they cannot be paired."""
    why_not: str
    """Why no tasks are paired; empty if some are."""
    sides: tuple[Side, Side] | None = None
    here: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    """Indexes of the common tasks: `here` in the first side, `there` in the second."""
    there: Ints = field(default_factory=lambda: np.empty(0, np.int64))


def pair(baseline: Run, other: Run) -> Pairing:
    """Pair tasks by index if both manifests state the same input, otherwise by content or, failing that, by prompt."""
    before, after = baseline.by_task, other.by_task
    if before is None or after is None:
        return Pairing("", "one of the two runs has no measured rollout with a task index")
    inputs = [(run.profile.identity or {}).get("input_sha256") for run in (baseline, other)]
    if inputs[0] is not None and inputs[0] == inputs[1]:
        return matched(SAME_INPUT, _side(before, before.task), _side(after, after.task))
    for by in (BY_CONTENT, BY_PROMPT):
        first, second = side_by(by, baseline), side_by(by, other)
        if first is not None and second is not None:
            return matched(by, first, second)
    input_difference = (
        "their inputs differ (input_sha256)"
        if None not in inputs
        else "no manifest shows that their inputs are the same"
    )
    return Pairing(
        "",
        f"{input_difference}, and their rows do not identify the tasks: some lack _ng_task_key, which "
        "ng_collect_rollouts writes, and the prompts are not unique",
    )


def side_by(by: str, run: Run) -> Side | None:
    """Return the tasks of a run with their keys: SAME_INPUT, BY_CONTENT or BY_PROMPT. None if its rows have none."""
    if (grouped := run.by_task) is None:
        return None
    if by == SAME_INPUT:
        return _side(grouped, grouped.task)
    keys = _per_task_value(run.columns.content, grouped) if by == BY_CONTENT else _distinct(run.columns, grouped)
    return None if keys is None else _side(grouped, keys)


def matched(by: str, first: Side, second: Side) -> Pairing:
    """Pair the tasks of two runs by their keys."""
    _, here, there = np.intersect1d(first.key, second.key, assume_unique=True, return_indices=True)
    why = "" if len(here) else "they have no task in common"
    return Pairing(by, why, (first, second), here, there)


def _per_task_value(values: Ints, grouped: PerTask) -> Ints | None:
    """Return the value of each task; None if a rollout has no value or a task's rollouts have different values."""
    own = values[grouped.starts]
    same = (values == np.repeat(own, grouped.measured)).all() and (own != 0).all()
    return own if same else None


def _distinct(columns: Columns, grouped: PerTask) -> Ints | None:
    own = _per_task_value(columns.prompt, grouped)
    return own if own is not None and len(np.unique(own)) == len(own) else None


def _side(grouped: PerTask, keys: Ints) -> Side:
    key, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    if len(key) == len(keys):
        rate = grouped.solve_rate
        return Side(
            key,
            grouped.task[first],
            grouped.measured[first],
            grouped.mean[first],
            None if rate is None else rate[first],
            inverse,
        )
    measured = np.bincount(inverse, weights=grouped.measured).astype(np.int64)
    mean = np.bincount(inverse, weights=grouped.mean * grouped.measured) / measured
    solved = None if grouped.solved is None else np.bincount(inverse, weights=grouped.solved) / measured
    return Side(key, grouped.task[first], measured, mean, solved, inverse)
