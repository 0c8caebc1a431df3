"""Serves the findings of a run, and the rollouts of one finding as a list."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, HTTPException, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.findings.finding import Finding
from rollyard.analysis.viewer.api.api_records import Page
from rollyard.analysis.viewer.api.rollout_list import MAX_LINES, page_start
from rollyard.analysis.viewer.findings.finding_index import FindingIndex, FoundSoFar
from rollyard.analysis.viewer.findings.finding_rows import rows_of
from rollyard.analysis.viewer.index.library import FileIndex
from rollyard.records.types import Record

_ALMOST = 0.999
_NO_STORE = {"cache-control": "no-store"}


class FindingsView(Record):
    """GET /api/runs/{run}/findings: what stands out in the part of the file that has been examined."""

    findings: list[Finding]
    rollouts: int
    """Number of measured rollouts that were examined."""
    examined: float
    """Share of the file that has been examined. Below 1, the page asks again. It is not 1 either while the findings do
    not cover all that has been read."""
    error: str
    """Why the file cannot be examined any further; empty if it can."""


class FindingRollouts(Record):
    """GET /api/runs/{run}/findings/{kind}/rollouts."""

    finding: Finding
    page: Page


def finding_router(file_index: FileIndex, findings: FindingIndex) -> APIRouter:
    """Build the routes."""
    api = APIRouter(prefix="/api/runs/{run}/findings")

    @api.get("")
    async def all_findings(run: int) -> Response:
        return await _json(lambda: findings_view(findings, run))

    @api.get("/{kind}/rollouts")
    async def rollouts(
        run: int,
        kind: str,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
    ) -> Response:
        return await _json(lambda: _rollouts(file_index, findings, run, kind, start, limit))

    return api


def findings_view(findings: FindingIndex, run: int) -> FindingsView:
    """Return the findings so far."""
    examined, error = findings.progress(run)
    found = findings.found(run)
    return view_of(found, examined if found.is_latest else min(examined, _ALMOST), error)


def view_of(found: FoundSoFar, examined: float = 1.0, error: str = "") -> FindingsView:
    """Return the response with these findings."""
    return FindingsView(
        findings=[one.finding for one in found.found], rollouts=found.rollouts, examined=examined, error=error
    )


def _rollouts(
    file_index: FileIndex, findings: FindingIndex, run: int, kind: str, start: int, limit: int
) -> FindingRollouts:
    findings.progress(run)
    found = next((one for one in findings.found(run).found if one.finding.kind == kind), None)
    if found is None:
        raise HTTPException(404, f"run {run} has no finding {kind[:80]!r} in the part examined so far")
    listing = file_index.find(run).listing
    indexes = rows_of(listing.table, found)
    start = page_start(start, limit, len(indexes))
    page = listing.page_of(indexes[start : start + limit], len(indexes), start)
    return FindingRollouts(finding=found.finding, page=page)


async def _json(make: Callable[[], Record]) -> Response:
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers=_NO_STORE)
