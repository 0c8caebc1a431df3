"""Files as the steps of a series: their curves, and their tasks as a heat map."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response

from rollyard.analysis.charts.curves import ChartGroup, group_of, step_chart
from rollyard.analysis.metrics.columns import Floats, displayable
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.run_pair import SOLVE_RATE
from rollyard.analysis.metrics.training_steps import SORTS, TaskSeries, drawn_names, ends, evenly
from rollyard.analysis.viewer.json_responses import json_response
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.step_reader import SeriesProgress, SeriesSource, StepFile, StepReader
from rollyard.records.types import Record

Value = Literal["solve_rate", "reward"]
MAX_COLUMNS = 40
MAX_LINES = 500
_LAST = 2**53


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


def series_router(index: FileIndex, source: SeriesSource, reader: StepReader) -> APIRouter:
    """Build the routes. `source` names the files of each series; `reader` reads them."""
    router = APIRouter(prefix="/api/series")
    paired: dict[tuple[int, ...], TaskSeries] = {}
    """The latest heat map, by the revision and the runs that it shows."""

    def files_of(of: str) -> tuple[str, Sequence[StepFile]]:
        known = source()
        chosen = of or next((name for name, files in known.items() if len(files) > 1), next(iter(known), ""))
        if chosen not in known:
            raise HTTPException(404, f"there is no series {displayable(of)!r}; expected one of {', '.join(known)}")
        return chosen, known[chosen]

    def view(of: str) -> SeriesView:
        chosen, files = files_of(of)
        found = reader.progress(files)
        notes = [*found.errors, *dict.fromkeys(one.why_no_reward for one in found.summaries.values())]
        return SeriesView(
            of=chosen,
            choices=[SeriesChoice(name=name, steps=len(known)) for name, known in source().items()],
            steps=_steps(files, found),
            read=found.read,
            total=found.total,
            seconds_left=found.seconds_left,
            revision=found.revision,
            groups=_groups(files, found),
            notes=[displayable(note, 1000) for note in notes if note],
        )

    def task_map(of: str, value: Value | None, sort: str, steps: tuple[int, int], start: int, limit: int) -> TaskMap:
        _, files = files_of(of)
        found = reader.progress(files)
        inside = [one for one in files if steps[0] <= one.step <= steps[1] and one.step in found.summaries]
        columns = [inside[at] for at in evenly(len(inside), MAX_COLUMNS)]
        version = found.revision, *(one.run for one in columns)
        series = paired.get(version)
        if series is None:
            series = TaskSeries.of([found.summaries[one.step] for one in columns])
            paired.clear()
            paired[version] = series
        values: list[Value] = ["solve_rate", "reward"] if series.has_solved else ["reward"]
        shown = value if value in values else values[0]
        numbers = series.solve_rate if shown == SOLVE_RATE else series.mean
        low, high = value_range(shown, numbers)
        order = series.order(sort, numbers)[start : start + limit]
        return TaskMap(
            columns=_steps(columns, found),
            steps=len(inside),
            value=shown,
            values=values,
            low=low,
            high=high,
            total=len(series),
            start=start,
            rows=[map_row(series, numbers, row) for row in order.tolist()],
            by=series.by,
            why_not=series.why_not if columns else "",
        )

    @router.get("")
    async def curves(of: Annotated[str, Query(max_length=20)] = "") -> Response:
        return await json_response(lambda: view(of))

    @router.get("/tasks")
    async def tasks(
        of: Annotated[str, Query(max_length=20)] = "",
        value: Value | None = None,
        sort: Annotated[str, Query(pattern=f"^-?({'|'.join(SORTS)})$")] = "change",
        first: Annotated[int, Query(ge=0)] = 0,
        last: Annotated[int, Query(ge=0)] = _LAST,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
    ) -> Response:
        return await json_response(lambda: task_map(of, value, sort, (first, last), start, limit))

    return router


def _steps(files: Sequence[StepFile], found: SeriesProgress) -> list[SeriesStep]:
    return [
        SeriesStep(
            step=one.step,
            run=one.run,
            name=displayable(one.name),
            rollouts=found.summaries[one.step].rollouts if one.step in found.summaries else None,
        )
        for one in files
    ]


def _groups(files: Sequence[StepFile], found: SeriesProgress) -> list[ChartGroup]:
    links = {one.step: f"#/runs/{one.run}" for one in files}
    groups: dict[str, list[str]] = {}
    for name in drawn_names(found.summaries):
        groups.setdefault(group_of(name), []).append(name)

    def by_step(name: str) -> dict[int, Estimate]:
        return {step: one.figures[name] for step, one in found.summaries.items() if name in one.figures}

    return [
        ChartGroup(title=title, charts=[step_chart(name, by_step(name), links) for name in names])
        for title, names in groups.items()
    ]


def map_row(series: TaskSeries, values: Floats, row: int) -> MapRow:
    """Return the cells of a task; `values` are those of all tasks."""
    cells = [
        None
        if np.isnan(value)
        else MapCell(task=int(series.task[row, column]), value=value, rollouts=int(series.measured[row, column]))
        for column, value in enumerate(values[row].tolist())
    ]
    first, last = ends(values[row : row + 1])
    change = float(last[0] - first[0])
    return MapRow(task=int(series.label[row]), cells=cells, change=None if np.isnan(change) else change)


def value_range(value: str, values: Floats) -> tuple[float, float]:
    """Return the range of the colours: 0 to 1 for solve rates, the lowest to the highest mean reward."""
    if value == SOLVE_RATE or np.isnan(values).all():
        return 0.0, 1.0
    return float(np.nanmin(values)), float(np.nanmax(values))
