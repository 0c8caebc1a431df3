"""The rollouts that a rollout is worth comparing with: the next repeat, the best repeat, and those in other files."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Literal

import numpy as np
from fastapi import APIRouter, HTTPException
from fastapi.responses import Response

from rollyard.analysis.metrics.columns import Columns, displayable
from rollyard.analysis.viewer.json_responses import json_response
from rollyard.analysis.viewer.library import FileIndex
from rollyard.analysis.viewer.rollout_list import Table
from rollyard.analysis.viewer.run_file import RunFile
from rollyard.records.types import Record

MAX_FILES = 4
"""Number of other files in which the task is looked up: the nearest ones, which are the nearest steps of a series."""
Kind = Literal["next repeat", "best repeat", "other file"]


def counterpart_router(index: FileIndex) -> APIRouter:
    """Build the route. `index` has the opened files."""
    router = APIRouter(prefix="/api")

    @router.get("/runs/{run}/rollouts/{task}/{repeat}/counterparts")
    async def of_rollout(run: int, task: int, repeat: int) -> Response:
        def found() -> Counterparts:
            known = counterparts(index.find(run), task, repeat, index.runs)
            if known is None:
                raise HTTPException(404, f"task {task}, repeat {repeat} is not in the part of the file read so far")
            return known

        return await json_response(found)

    return router


class Counterpart(Record):
    """A rollout of the same task."""

    kind: Kind
    run: int
    name: str
    """Name of the run."""
    task: int
    repeat: int
    success: bool | None
    reward: float | None


class Counterparts(Record):
    """GET /api/runs/{run}/rollouts/{task}/{repeat}/counterparts: rollouts of the same task, most similar first."""

    counterparts: list[Counterpart]


def counterparts(run: RunFile, task: int, repeat: int, runs: Sequence[RunFile]) -> Counterparts | None:
    """Return the counterparts of a rollout in its own run and in the other `runs`; None if there is no such rollout."""
    table, columns = run.listing.table, run.listing.columns
    at = table.find(task, repeat)
    if at is None:
        return None
    found: list[Counterpart] = []
    low, high = table.of_task(task)
    if high - low > 1:
        following = at + 1 if at + 1 < high else low
        found.append(_counterpart("next repeat", run, table, following))
        best = _best(table, [index for index in range(low, high) if index != at])
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


def _counterpart(kind: Kind, run: RunFile, table: Table, index: int) -> Counterpart:
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


def _best(table: Table, indexes: Sequence[int]) -> int | None:
    """Return the solved rollout with the highest reward, else the one with the highest reward."""
    measured = [index for index in indexes if table.measured[index]]
    return max(measured, key=lambda index: (table.success[index] == 1, table.reward[index]), default=None)


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
