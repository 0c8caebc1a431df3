"""TaskSeries: the results of each task at several steps, paired by the tasks' content."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from rollyard.analysis.metrics.loader.columns import Floats, Ints
from rollyard.analysis.metrics.task_pairing import BY_CONTENT, BY_PROMPT, SAME_INPUT, Side
from rollyard.analysis.metrics.training.step_summary import StepSummary

SORTS = ("task", "first", "last", "change", "learned")
_LEARNED = 0.5


@dataclass(frozen=True)
class TaskSeries:
    """The tasks of a series as arrays with a row per task and a column per step."""

    by: str
    """How tasks are paired, as in `task_pairing`; empty if they cannot be."""
    why_not: str
    task: Ints
    """Index of the task in the step's file; -1 if the step has no rollout of it."""
    measured: Ints
    mean: Floats
    solve_rate: Floats
    """NaN if "solved" is undefined in the step."""

    @classmethod
    def of(cls, steps: Sequence[StepSummary]) -> TaskSeries:
        """Pair the tasks of these steps by content; by index only if all manifests state the same input."""
        by = _common_key(steps)
        sides = [one.sides[by] for one in steps] if by else []
        keys: Ints = np.unique(np.concatenate([side.key for side in sides])) if sides else np.empty(0, np.int64)
        shape = len(keys), len(sides)
        task, measured = np.full(shape, -1, np.int64), np.zeros(shape, np.int64)
        mean, rate = np.full(shape, np.nan), np.full(shape, np.nan)
        for column, side in enumerate(sides):
            rows = np.searchsorted(keys, side.key)
            task[rows, column], measured[rows, column], mean[rows, column] = side.task, side.measured, side.mean
            if side.solve_rate is not None:
                rate[rows, column] = side.solve_rate
        return cls(by, "" if by else _why_no_key(steps), task, measured, mean, rate)

    def __len__(self) -> int:
        return len(self.task)

    @property
    def has_solved(self) -> bool:
        """Whether every step has solve rates, so that the steps can be compared by them."""
        return bool(len(self)) and bool((~np.isnan(self.solve_rate)).any(axis=0).all())

    @property
    def label(self) -> Ints:
        """Index of each task in the first step that has it."""
        if not self.task.size:
            return np.empty(0, np.int64)
        first = (self.task >= 0).argmax(axis=1)
        return np.asarray(self.task[np.arange(len(self)), first], np.int64)

    def order(self, sort: str, values: Floats) -> Ints:
        """Return the rows by `sort`, one of SORTS, with `-` before it for descending order. Tasks without a value come
        last.

        `learned` is the first step from which a task is solved in at least half of its rollouts until the end.
        """
        name, direction = sort.removeprefix("-"), -1.0 if sort.startswith("-") else 1.0
        first, last = ends(values)
        known = {"task": self.label.astype(float), "first": first, "last": last, "change": last - first}
        chosen = learned_at(values) if name == "learned" else known[name]
        return np.lexsort((self.label, direction * (last - first), direction * chosen))


def ends(values: Floats) -> tuple[Floats, Floats]:
    """Return the first and the last known value of each row; the change of a row with one value is unknown, so that
    its last value is NaN.
    """
    rows, known = np.arange(len(values)), ~np.isnan(values)
    if not values.size:
        return np.full(len(values), np.nan), np.full(len(values), np.nan)
    start, stop = known.argmax(axis=1), values.shape[1] - 1 - known[:, ::-1].argmax(axis=1)
    first, last = values[rows, start], values[rows, stop]
    return first, np.where(start < stop, last, np.nan)


def learned_at(values: Floats) -> Floats:
    """Return the column from which on all known values of a row are at least one half; NaN if there is none."""
    if not values.size:
        return np.full(len(values), np.nan)
    known = ~np.isnan(values)
    below: NDArray[np.bool_] = known & (values < _LEARNED)
    columns = values.shape[1]
    after = np.where(below.any(axis=1), columns - below[:, ::-1].argmax(axis=1), 0)
    candidates = known & (np.arange(columns) >= after[:, None])
    return np.where(candidates.any(axis=1), candidates.argmax(axis=1), np.nan)


def evenly(count: int, most: int) -> list[int]:
    """Return at most `most` evenly spaced indexes below `count`, with the first and the last."""
    if count <= most:
        return list(range(count))
    return sorted({round(index * (count - 1) / (most - 1)) for index in range(most)})


def _common_key(steps: Sequence[StepSummary]) -> str:
    sides: list[dict[str, Side]] = [one.sides for one in steps]
    if not sides:
        return ""
    if all(BY_CONTENT in one for one in sides):
        return BY_CONTENT
    # Steps with content keys have no others.
    if all(SAME_INPUT in one for one in sides) and steps[0].input and len({one.input for one in steps}) == 1:
        return SAME_INPUT
    return BY_PROMPT if all(BY_PROMPT in one for one in sides) else ""


def _why_no_key(steps: Sequence[StepSummary]) -> str:
    keyed = sum(BY_CONTENT in one.sides for one in steps)
    if keyed:
        return f"{len(steps) - keyed} of the {len(steps)} steps have rows without _ng_task_key, which the others have"
    return "the rows do not identify their tasks: some lack _ng_task_key, and prompts are not unique"
