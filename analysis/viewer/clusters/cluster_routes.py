"""Serves the clusters of the failed rollouts of a run, and those of two runs with their changes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.clusters.cluster_records import ClusterComparison, Clusters
from rollyard.analysis.viewer.clusters.cluster_index import ClusterIndex, Place, record_of
from rollyard.records.expressions.parse import parse
from rollyard.records.types import Record

_NO_STORE = {"cache-control": "no-store"}
Where = Annotated[str, Query(max_length=2000)]


class ClustersView(Record):
    """GET /api/runs/{run}/clusters and /api/clusters/{first}/{second}."""

    clusters: Clusters | None = None
    changes: ClusterComparison | None = None
    """Of two runs."""
    done: float
    """Share of the work that is done. Below 1, the page asks again."""
    error: str
    """Why there are no clusters, such as a missing package; empty if they can be computed."""


def cluster_router(clusters: ClusterIndex) -> APIRouter:
    """Build the routes."""
    api = APIRouter(prefix="/api")

    @api.get("/runs/{run}/clusters")
    async def of_run(run: int, where: Where = "") -> Response:
        return await _json(lambda: clusters_view(clusters, Place((run,), where)))

    @api.get("/clusters/{first}/{second}")
    async def of_pair(first: int, second: int, where: Where = "") -> Response:
        return await _json(lambda: clusters_view(clusters, Place((first, second), where)))

    return api


def clusters_view(clusters: ClusterIndex, place: Place) -> ClustersView:
    """Return the clusters so far. Raises ExpressionError if the expression is invalid, and UnknownRun."""
    if place.where:
        parse(place.where)
    now = clusters.progress(place)
    found = record_of(now)
    return ClustersView(
        clusters=found if isinstance(found, Clusters) else None,
        changes=found if isinstance(found, ClusterComparison) else None,
        done=now.share,
        error=now.error,
    )


async def _json(make: Callable[[], Record]) -> Response:
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers=_NO_STORE)
