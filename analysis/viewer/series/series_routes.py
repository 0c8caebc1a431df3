"""Serves series of steps: their curves, their tasks as a heat map, and the changes between two of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.charts.curves.step_charts import group_of, step_chart
from rollyard.analysis.charts.curves.training_charts import ChartGroup
from rollyard.analysis.metrics.estimate import Estimate
from rollyard.analysis.metrics.loader.columns import displayable
from rollyard.analysis.metrics.paired.metric import SOLVE_RATE
from rollyard.analysis.metrics.paired.task_changes import LISTS
from rollyard.analysis.metrics.training.step_summary import drawn_names
from rollyard.analysis.metrics.training.task_series import SORTS, TaskSeries, evenly
from rollyard.analysis.viewer.index.library import FileIndex
from rollyard.analysis.viewer.series.changes_view import RunChanges
from rollyard.analysis.viewer.series.series_records import SeriesChoice, SeriesStep, SeriesView, TaskMap, Value
from rollyard.analysis.viewer.series.step_files import SeriesSource, StepFile
from rollyard.analysis.viewer.series.step_reader import SeriesProgress, StepReader
from rollyard.analysis.viewer.series.task_map import map_row, value_range
from rollyard.records.types import Record

MAX_COLUMNS = 40
MAX_LINES = 500
_LAST = 2**53


def series_router(index: FileIndex, source: SeriesSource, reader: StepReader) -> APIRouter:
    """Build the routes. `source` names the files of each series; `reader` reads them."""
    router = APIRouter(prefix="/api/series")
    changed = RunChanges(index.find)
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
        return await _json(lambda: view(of))

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
        return await _json(lambda: task_map(of, value, sort, (first, last), start, limit))

    @router.get("/changes")
    async def changes(
        first: int,
        second: int,
        listed: Annotated[str, Query(alias="list", pattern=f"^({'|'.join(LISTS)})$")] = "learned",
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
    ) -> Response:
        return await _json(lambda: changed.page((first, second), listed, start, limit))

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


async def _json(make: Callable[[], Record]) -> Response:
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})
