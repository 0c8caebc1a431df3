"""Files as the steps of a series: their curves, and their tasks as a heat map.

`StepReader` reads the files in the background and keeps a summary of each.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response

from rollyard.analysis.charts.curves import ChartGroup, group_of, step_chart
from rollyard.analysis.metrics.columns import Floats, displayable
from rollyard.analysis.metrics.estimators import Estimate
from rollyard.analysis.metrics.load import (
    PART,
    FilePart,
    Read,
    has_task_index,
    read_part,
    reading_pool,
    run_from_columns,
)
from rollyard.analysis.metrics.run_pair import SOLVE_RATE
from rollyard.analysis.metrics.training_steps import (
    SORTS,
    NumberColumns,
    RowNumbers,
    StepSummary,
    SummarizedStep,
    TaskSeries,
    drawn_names,
    ends,
    evenly,
    joined,
    step_summary,
)
from rollyard.analysis.viewer.growing_index import NICE, empty, extended
from rollyard.analysis.viewer.library import Closed, FileIndex
from rollyard.analysis.viewer.responses import json_response
from rollyard.analysis.viewer.training import TrainingFolder, evaluation_number, rollouts_number
from rollyard.records.errors import RollyardError
from rollyard.records.types import Record

log = logging.getLogger(__name__)
FILES, EVALUATIONS, ROLLOUTS = "files", "evaluations", "rollouts"
WORTH_PROCESSES = 64 << 20
"""Minimum number of bytes of a file for which processes are started, so that requests are not held up."""
_PAUSE_S, _PAUSE_FACTOR = 5.0, 10.0
"""A growing file is read again after a pause: at least so many seconds, and so many times the duration of reading."""
Value = Literal["solve_rate", "reward"]
MAX_COLUMNS = 40
MAX_LINES = 500
_LAST = 2**53


class SeriesStep(Record):
    step: int
    run: int
    name: str
    rollouts: int | None
    """Number of measured rollouts; None if the file has not been read, or has none."""


class SeriesChoice(Record):
    name: str
    """`files`, or `evaluations` and `rollouts` of a training run."""
    steps: int


class SeriesView(Record):
    """GET /api/series?of=: the curves of a series. The page polls it until everything was read."""

    of: str
    choices: list[SeriesChoice]
    steps: list[SeriesStep]
    read: int
    total: int
    revision: int
    """Changes when there is something new to draw."""
    groups: list[ChartGroup]
    notes: list[str]


class MapCell(Record):
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
        low, high = 0.0, 1.0
        if shown != SOLVE_RATE and not np.isnan(numbers).all():
            low, high = float(np.nanmin(numbers)), float(np.nanmax(numbers))
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
    cells = [
        None
        if np.isnan(value)
        else MapCell(task=int(series.task[row, column]), value=value, rollouts=int(series.measured[row, column]))
        for column, value in enumerate(values[row].tolist())
    ]
    first, last = ends(values[row : row + 1])
    change = float(last[0] - first[0])
    return MapRow(task=int(series.label[row]), cells=cells, change=None if np.isnan(change) else change)


@dataclass(frozen=True)
class StepFile:
    step: int
    run: int
    name: str
    path: Path


SeriesSource = Callable[[], Mapping[str, Sequence[StepFile]]]
"""Returns the files of each series by its name, in ascending order of steps. A training run gets more of them."""


def files_as_series(files: Sequence[tuple[str, Path]], steps: Sequence[int]) -> SeriesSource:
    named = zip(steps, enumerate(files), strict=True)
    found = sorted((StepFile(step, run, name, path) for step, (run, (name, path)) in named), key=lambda one: one.step)
    return lambda: {FILES: found}


def training_series(folder: TrainingFolder) -> SeriesSource:
    """Return the two series of a training run: its evaluations, which have the same tasks, and its rollouts."""

    def source() -> Mapping[str, Sequence[StepFile]]:
        evaluations, rollouts = folder.evaluations(), folder.rollouts()
        found = {
            EVALUATIONS: [StepFile(s, evaluation_number(s), f"step {s}", path) for s, path in evaluations.items()],
            ROLLOUTS: [StepFile(s, rollouts_number(s), f"step {s}", path) for s, path in rollouts.items()],
        }
        return {name: files for name, files in found.items() if files}

    return source


@dataclass(frozen=True)
class SeriesProgress:
    summaries: dict[int, StepSummary]
    """By step. Steps that have not been read, or have no measured rollout, are missing."""
    read: int
    total: int
    errors: tuple[str, ...]
    revision: int


@dataclass(frozen=True)
class _Known:
    fingerprint: tuple[int, int]
    summary: StepSummary | None
    error: str
    again: float
    """When the file may be read again, if it has changed (monotonic time)."""


class StepReader:
    """Thread-safe. Reading starts with the first question and ends when everything was read."""

    def __init__(
        self,
        *,
        threshold: float | None = None,
        workers: int | None = None,
        worth_processes: int = WORTH_PROCESSES,
        part: int = PART,
    ) -> None:
        """Rewards of at least `threshold` count as solved. `workers`: number of processes that read a file of at least
        `worth_processes` bytes (default: one per CPU), `part` bytes at a time.
        """
        self._worth_processes, self._part = worth_processes, part
        self._threshold = threshold
        self._workers = workers or len(os.sched_getaffinity(0))
        self._known: dict[Path, _Known] = {}
        self._queue: list[StepFile] = []
        self._done = 0
        self._current: Path | None = None
        self._revision = 0
        self._closed = False
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def progress(self, files: Sequence[StepFile]) -> SeriesProgress:
        """Return what is known of these files, and go on reading them in the background."""
        sizes = {one.path: _fingerprint(one.path) for one in files}
        with self._lock:
            now = time.monotonic()
            stale = [
                one for one in files if one.path != self._current and self._is_stale(one.path, sizes[one.path], now)
            ]
            self._queue = sorted(stale, key=lambda one: files.index(one) not in (0, len(files) - 1))  # the ends first
            if stale and not self._closed and (self._thread is None or not self._thread.is_alive()):
                self._thread = threading.Thread(target=self._read, name="series", daemon=True)
                self._thread.start()
            known = {one.step: self._known[one.path] for one in files if one.path in self._known}
            unread = sum(sizes[one.path][0] for one in files if one.path not in self._known)
            begun = self._done if self._current in sizes and self._current not in self._known else 0
            revision = self._revision
        total = sum(size for size, _ in sizes.values())
        return SeriesProgress(
            summaries={step: one.summary for step, one in known.items() if one.summary is not None},
            read=min(total, total - unread + begun),
            total=total,
            errors=tuple(one.error for one in known.values() if one.error),
            revision=revision,
        )

    def wait(self) -> None:
        if (thread := self._thread) is not None:
            thread.join()

    def close(self) -> None:
        self._closed = True
        self.wait()

    def _is_stale(self, path: Path, fingerprint: tuple[int, int], now: float) -> bool:
        known = self._known.get(path)
        return known is None or (known.fingerprint != fingerprint and now >= known.again)

    def _read(self) -> None:
        while not self._closed:
            with self._lock:
                if not self._queue:
                    self._thread = None
                    return
                one = self._queue.pop(0)
                self._current, self._done = one.path, 0
            started, fingerprint = time.monotonic(), _fingerprint(one.path)
            try:
                summary, error = self._summary(one), ""
            except (OSError, RollyardError) as problem:
                summary, error = None, f"{one.name} cannot be read: {problem}"
            except Closed:
                return
            except Exception as problem:
                log.exception("reading %s failed", one.path)
                summary, error = None, f"{one.name} cannot be read: {type(problem).__name__}: {problem}"
            ended = time.monotonic()
            again = ended + max(_PAUSE_S, _PAUSE_FACTOR * (ended - started))
            with self._lock:
                self._known[one.path] = _Known(fingerprint, summary, error, again)
                self._current = None
                self._revision += 1

    def _summary(self, one: StepFile) -> StepSummary | None:
        indexed, size = has_task_index(one.path), one.path.stat().st_size
        if indexed is None:
            return None
        parts: list[FilePart] = []
        numbers: list[NumberColumns] = []
        with closing(self._parts(one.path, size, indexed)) as read_parts:
            for part, found, end in read_parts:
                parts.append(part)
                numbers.append(found)
                self._done = end
                if self._closed:
                    raise Closed
        snapshot = extended(empty(), parts, has_task_index=indexed)
        if not len(snapshot.columns):
            return None
        read = Read(snapshot.columns, size, 0, indexed)
        run = run_from_columns(one.path, one.name, read, pass_threshold=self._threshold)
        return step_summary(run, joined(numbers).at(run.columns.offset)) if len(run.columns) else None

    def _parts(self, path: Path, size: int, indexed: bool) -> Generator[tuple[FilePart, NumberColumns, int]]:
        """Yield the parts of a file in order, each with the byte at which it ends."""
        places = [(start, min(start + self._part, size)) for start in range(0, size, self._part)]
        if size < self._worth_processes:
            for start, end in places:
                yield *_part(path, start, end, indexed), end
            return
        with reading_pool(min(self._workers, len(places)), nice=NICE) as pool:
            # Some parts ahead keep the processes busy; more would only fill the memory with what is not used yet.
            waiting = iter(places)
            ahead = [
                (pool.submit(_part, path, *place, indexed), place[1]) for place in islice(waiting, 2 * self._workers)
            ]
            try:
                while ahead:
                    future, end = ahead.pop(0)
                    yield *future.result(), end
                    ahead += [(pool.submit(_part, path, *place, indexed), place[1]) for place in islice(waiting, 1)]
            finally:
                pool.shutdown(cancel_futures=True)


def _part(path: Path, start: int, stop: int, indexed: bool) -> tuple[FilePart, NumberColumns]:
    numbers = RowNumbers()
    part = read_part(path, start, stop, indexed, numbers.add)
    return part, numbers.columns()


def _fingerprint(path: Path) -> tuple[int, int]:
    try:
        stat = path.stat()
    except OSError:
        return 0, 0
    return stat.st_size, stat.st_mtime_ns


def read_series(
    files: Sequence[tuple[int, str, Path]], *, threshold: float | None = None
) -> tuple[list[SummarizedStep], tuple[str, ...]]:
    """Return the summary of each (step, name, path), and why files could not be read. Rewards of at least `threshold`
    count as solved.
    """
    steps = [StepFile(step, number, name, path) for number, (step, name, path) in enumerate(files)]
    reader = StepReader(threshold=threshold)
    try:
        reader.progress(steps)
        reader.wait()
        found = reader.progress(steps)
    finally:
        reader.close()
    summarized = [SummarizedStep(one.step, one.name, str(one.path), found.summaries.get(one.step)) for one in steps]
    return summarized, found.errors
