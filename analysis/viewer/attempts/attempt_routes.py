"""Serves the failed attempts of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

import numpy as np
from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.metrics.loader.columns import Ints
from rollyard.analysis.viewer.api.rollout_list import MAX_LINES
from rollyard.analysis.viewer.api.rollout_view import Replays
from rollyard.analysis.viewer.attempts.attempt_records import AttemptPage, AttemptView
from rollyard.analysis.viewer.attempts.attempt_view import attempt_page, attempt_view, sequel
from rollyard.analysis.viewer.findings.finding_index import FindingIndex
from rollyard.analysis.viewer.index.library import FileIndex
from rollyard.records.types import Record

_NO_STORE = {"cache-control": "no-store"}


def attempt_router(file_index: FileIndex, findings: FindingIndex, replays: Replays) -> APIRouter:
    """Build the routes. `replays` draws boards."""
    api = APIRouter(prefix="/api/runs/{run}")

    @api.get("/attempts")
    async def attempts(
        run: int,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
        kind: str | None = None,
        finding: str | None = None,
    ) -> Response:
        return await _json(lambda: _page(file_index, findings, run, start, limit, kind, finding))

    @api.get("/attempts/{task}/{repeat}/{at}")
    async def attempt(run: int, task: int, repeat: int, at: int) -> Response:
        return await _json(lambda: _view(file_index, replays, run, task, repeat, at))

    @api.get("/sequel/{task}/{repeat}")
    async def what_became_of_it(run: int, task: int, repeat: int) -> Response:
        return await _json(lambda: sequel(file_index.find(run), task, repeat))

    return api


def _page(
    file_index: FileIndex,
    findings: FindingIndex,
    run: int,
    start: int,
    limit: int,
    kind: str | None,
    finding: str | None,
) -> AttemptPage:
    only: tuple[Ints, Ints] | None = None
    if finding is not None:
        findings.progress(run)
        found = next((one for one in findings.found(run).found if one.finding.kind == finding), None)
        if found is None:
            raise HTTPException(404, f"run {run} has no finding {finding[:80]!r} in the part examined so far")
        only = found.task.astype(np.int64), found.repeat.astype(np.int64)
    return attempt_page(file_index.find(run), start, limit, kind, only)


def _view(file_index: FileIndex, replays: Replays, run: int, task: int, repeat: int, at: int) -> AttemptView:
    view = attempt_view(file_index.find(run), task, repeat, at, replays)
    if view is None:
        raise HTTPException(404, f"task {task}, repeat {repeat} has no failed attempt {at + 1} in the part read so far")
    return view


async def _json(make: Callable[[], Record]) -> Response:
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers=_NO_STORE)
