"""Records of the routes under /api/series."""

from __future__ import annotations

from typing import Literal

from rollyard.analysis.charts.curves.training_charts import ChartGroup
from rollyard.analysis.metrics.paired.records import PairedDifference
from rollyard.analysis.metrics.paired.task_changes import TaskChange
from rollyard.records.types import Record

Value = Literal["solve_rate", "reward"]


class SeriesStep(Record):
    """A step of a series."""

    step: int
    run: int
    """Number of the file in the viewer."""
    name: str
    rollouts: int | None
    """Number of measured rollouts; None if the file has not been read, or has none."""


class SeriesChoice(Record):
    """A series that can be shown."""

    name: str
    """`files`, or `evaluations` and `rollouts` of a training run."""
    steps: int


class SeriesView(Record):
    """GET /api/series?of=: the curves of a series. The page polls it until everything was read."""

    of: str
    choices: list[SeriesChoice]
    steps: list[SeriesStep]
    read: int
    """Number of bytes of the files that were read."""
    total: int
    seconds_left: float | None
    """Estimate of the time until everything is read; None before anything was read."""
    revision: int
    """Changes when there is something new to draw."""
    groups: list[ChartGroup]
    notes: list[str]


class MapCell(Record):
    """The results of a task at a step."""

    task: int
    """Index of the task in the step's file."""
    value: float
    rollouts: int


class MapRow(Record):
    """A task of the heat map."""

    task: int
    """Index of the task in the first step that has it."""
    cells: list[MapCell | None]
    """A cell for each column; None if the step has no rollout of the task."""
    change: float | None
    """The last value minus the first; None if there is only one."""


class TaskMap(Record):
    """GET /api/series/tasks?of=&value=&sort=&first=&last=&start=&limit=: tasks by steps.

    `sort` is one of task, first, last, change and learned, with `-` before it for descending order. Only steps from
    `first` to `last` have columns, at most 40 of them, evenly spaced.
    """

    columns: list[SeriesStep]
    steps: int
    """Number of steps from `first` to `last`, of which some may have no column."""
    value: Value
    values: list[Value]
    """The values that can be shown."""
    low: float
    high: float
    """Range of the values, for colours."""
    total: int
    start: int
    rows: list[MapRow]
    by: str
    """How tasks are paired: by `content`, `prompt` or `index`; empty if they cannot be."""
    why_not: str


class Changes(Record):
    """GET /api/series/changes?first=&second=&list=&start=&limit=: what changed between two runs, given their numbers.

    `list` is one of learned, forgotten and all.
    """

    runs: tuple[int, int]
    names: tuple[str, str]
    read: float
    """Share of the two files that was read."""
    why_not: str
    """Why the runs cannot be compared; empty if they can."""
    by: str
    metric: str
    """`solve_rate` or `reward`."""
    difference: PairedDifference | None
    only: tuple[int, int]
    """Number of tasks that only the first run has, and only the second."""
    transitions: list[list[int]]
    """Tasks by how many of their rollouts are solved: none, some, all. A row per state in the first run."""
    learned: int
    forgotten: int
    total: int
    """Number of tasks in the list."""
    start: int
    tasks: list[TaskChange]
