"""Compares two runs task by task, and finds the rollouts that a rollout is worth comparing with: the next repeat, the
best repeat, and those of the same task in other files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from fastapi import APIRouter
from fastapi.responses import Response

from rollyard.analysis.charts.charts import Chart
from rollyard.analysis.charts.run_charts import difference_charts, side_by_side
from rollyard.analysis.metrics.columns import Columns, Floats, Ints, displayable
from rollyard.analysis.metrics.comparison import SAME_INPUT, Difference, Side, difference, pair
from rollyard.analysis.metrics.profile import Run
from rollyard.analysis.viewer.caches import ThrottledCache
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.rollout_list import RolloutTable, known
from rollyard.analysis.viewer.run_file import RunFile, index_of
from rollyard.records.types import Record

SORTS = ("task", "change", "first", "second")


class TaskPair(Record):
    task: int
    task_in_second: int
    """The task's index in the second run, which may differ."""
    rewards: tuple[float | None, float | None]
    solved: tuple[float | None, float | None]
    measured: tuple[int, int]


class ViewedComparison(Record):
    """GET /api/compare?first=0&second=1: the comparison of two runs.

    `sort` is one of task, change (of the solve rate, or of the mean reward if "solved" is undefined), first and second
    (the mean reward in that run). A leading `-` means descending order. `start` and `limit` work as they do for the
    list of rollouts.
    """

    runs: tuple[int, int]
    difference: Difference | None
    """None if the runs have no task in common."""
    note: str
    total: int
    start: int
    tasks: list[TaskPair]
    charts: list[Chart]


class _Side(NamedTuple):
    """The tasks in one of the runs; an index of -1 and NaN if it lacks a task."""

    task: Ints
    reward: Floats
    solved: Floats
    measured: Ints


@dataclass(frozen=True)
class ComparedTasks:
    """The tasks of two runs, as arrays of the same length. Empty if the tasks cannot be paired."""

    difference: Difference
    first: _Side
    second: _Side
    charts: list[Chart]

    @classmethod
    def of(cls, first: Run, second: Run) -> ComparedTasks:
        found = pair(first, second)
        sides = found.sides if found.sides is not None and not found.why_not else None
        keys = np.empty(0, np.int64)
        if sides is not None:
            # With the same input, tasks missing in one run are included. Otherwise an index may denote two tasks.
            keys = (np.union1d if found.by == SAME_INPUT else np.intersect1d)(sides[0].key, sides[1].key)
        one, other = (_spread(None if sides is None else sides[number], keys) for number in (0, 1))
        comparison = difference(first, second)
        charts = [*side_by_side([first.profile, second.profile]), *difference_charts(comparison)]
        return cls(comparison, one, other, charts)

    def page(self, runs: tuple[int, int], sort: str, start: int, limit: int) -> ViewedComparison:
        """Return a page of tasks. Tasks without a value for `sort` come last."""
        return ViewedComparison(
            runs=runs,
            difference=self.difference if self.difference.tasks else None,
            note=" ".join(self.difference.notes),
            total=len(self.first.task),
            start=start,
            tasks=[self._pair(index) for index in self._order(sort)[start : start + limit].tolist()],
            charts=self.charts,
        )

    def _pair(self, index: int) -> TaskPair:
        a, b = self.first, self.second
        first, second = int(a.task[index]), int(b.task[index])
        return TaskPair(
            task=first if first >= 0 else second,
            task_in_second=second if second >= 0 else first,
            rewards=(known(a.reward[index]), known(b.reward[index])),
            solved=(known(a.solved[index]), known(b.solved[index])),
            measured=(int(a.measured[index]), int(b.measured[index])),
        )

    def _order(self, sort: str) -> Ints:
        name, direction = sort.removeprefix("-"), -1 if sort.startswith("-") else 1
        a, b = self.first, self.second
        task = np.where(a.task >= 0, a.task, b.task)
        if name == "change":
            # If "solved" is undefined, every difference is NaN and the rewards decide.
            return np.lexsort((task, direction * (b.reward - a.reward), direction * (b.solved - a.solved)))
        return np.lexsort((task, direction * {"task": task, "first": a.reward, "second": b.reward}[name]))


class RunDifferences:
    """Caches comparisons of pairs of runs and recomputes a comparison when either run has changed. Thread-safe."""

    def __init__(self, find: Callable[[int], RunFile]) -> None:
        self._find = find
        self._pairs: dict[tuple[int, int], ThrottledCache[ComparedTasks]] = {}

    def of(self, first: int, second: int) -> ComparedTasks:
        (end_a, a), (end_b, b) = (self._find(number).numbers() for number in (first, second))
        comparison = self._pairs.setdefault((first, second), ThrottledCache())
        return comparison.get((end_a, end_b, id(a), id(b)), lambda: ComparedTasks.of(a, b))


def _spread(found: Side | None, keys: Ints) -> _Side:
    count = len(keys)
    side = _Side(np.full(count, -1), np.full(count, np.nan), np.full(count, np.nan), np.zeros(count, np.int64))
    if found is not None:
        _, own, at = np.intersect1d(found.key, keys, assume_unique=True, return_indices=True)
        side.task[at], side.reward[at], side.measured[at] = found.task[own], found.mean[own], found.measured[own]
        if found.solve_rate is not None:
            side.solved[at] = found.solve_rate[own]
    return side


MAX_FILES = 4
"""Number of other files in which the task is looked up: the nearest ones, which are the nearest steps of a series."""
Kind = Literal["next repeat", "best repeat", "other file"]


def counterpart_router(index: FileIndex) -> APIRouter:
    router = APIRouter(prefix="/api")

    @router.get("/runs/{run}/rollouts/{task}/{repeat}/counterparts")
    async def of_rollout(run: int, task: int, repeat: int) -> Response:
        return await json_response(lambda: counterparts(index.find(run), task, repeat, index.runs))

    return router


class Counterpart(Record):
    kind: Kind
    run: int
    name: str
    task: int
    repeat: int
    success: bool | None
    reward: float | None


class Counterparts(Record):
    """GET /api/runs/{run}/rollouts/{task}/{repeat}/counterparts: rollouts of the same task, most similar first."""

    counterparts: list[Counterpart]


def counterparts(run: RunFile, task: int, repeat: int, runs: Sequence[RunFile]) -> Counterparts:
    """Return the counterparts of a rollout in its own run and in the other `runs`. Raises HTTPException (404)."""
    table, columns = run.listing.table, run.listing.columns
    at = index_of(table, task, repeat)
    found: list[Counterpart] = []
    low, high = table.of_task(task)
    if high - low > 1:
        following = at + 1 if at + 1 < high else low
        found.append(_counterpart("next repeat", run, table, following))
        repeats = [index for index in range(low, high) if index != at and table.measured[index]]
        best = max(repeats, key=lambda index: (table.success[index] == 1, table.reward[index]), default=None)
        if best is not None and best != following:
            found.append(_counterpart("best repeat", run, table, best))
    others = sorted((one for one in runs if one is not run), key=lambda one: abs(one.number - run.number))[:MAX_FILES]
    for other in others:
        there = other.listing.table
        for number in _same_task(columns, task, other.listing.columns):
            start, end = there.of_task(number)
            if start < end:
                same = there.find(number, repeat)
                found.append(_counterpart("other file", other, there, start if same is None else same))
    return Counterparts(counterparts=found)


def _counterpart(kind: Kind, run: RunFile, table: RolloutTable, index: int) -> Counterpart:
    line = table.line(index)
    return Counterpart(
        kind=kind,
        run=run.number,
        name=displayable(run.name),
        task=line.task,
        repeat=line.repeat,
        success=line.success,
        reward=line.reward,
    )


def _same_task(columns: Columns, task: int, others: Columns) -> Iterator[int]:
    """Yield the index of the task in another file, by its content, else by a prompt that only one task has."""
    rows = np.flatnonzero(columns.task == task)
    if not len(rows):
        return
    for ours, theirs in ((columns.content, others.content), (columns.prompt, others.prompt)):
        key = int(ours[rows[0]])
        if key == 0 or not theirs.any():
            continue
        if ours is columns.prompt and len(np.unique(columns.task[ours == key])) > 1:
            return
        tasks = np.unique(others.task[theirs == key])
        if len(tasks) == 1 or (len(tasks) > 1 and ours is columns.content):
            yield int(tasks[0])
        return
