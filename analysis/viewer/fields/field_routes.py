"""Routes for the fields of rollout rows: known keys, values of one field, groups, and the check of an expression."""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated

from fastapi import APIRouter, Response
from fastapi import Query as Parameters
from pydantic import Field
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.viewer.api.rollout_list import Query
from rollyard.analysis.viewer.fields.groups import SORTS, facet_of, groups_of
from rollyard.analysis.viewer.index.run_file import RunFile
from rollyard.records.types import Record

_NAME = Field(min_length=1, max_length=500)


class FacetQuery(Query):
    """Query parameters of GET /api/runs/{run}/facet: a field, and those of the list."""

    key: str = _NAME


class GroupQuery(Query):
    """Query parameters of GET /api/runs/{run}/groups: a field, and those of the list."""

    by: str = _NAME
    order: str = Field(default="-rollouts", pattern=f"^-?({'|'.join(SORTS)})$")
    """What to sort the groups by."""


def field_router(find: Callable[[int], RunFile]) -> APIRouter:
    """Return the routes. `find` returns a run by its number."""
    router = APIRouter(prefix="/api/runs/{run}")

    @router.get("/keys")
    async def keys(run: int) -> Response:
        return await _json(lambda: find(run).fields.keys(find(run).listing.columns))

    @router.get("/expression")
    async def expression(run: int, text: Annotated[str, Parameters(max_length=4000)]) -> Response:
        return await _json(lambda: find(run).fields.check(find(run).listing.columns, text))

    @router.get("/facet")
    async def facet(run: int, query: Annotated[FacetQuery, Parameters()]) -> Response:
        return await _json(lambda: facet_of(find(run), query, query.key))

    @router.get("/groups")
    async def groups(run: int, query: Annotated[GroupQuery, Parameters()]) -> Response:
        return await _json(lambda: groups_of(find(run), query, query.by, query.order))

    return router


async def _json(make: Callable[[], Record]) -> Response:
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers={"cache-control": "no-store"})
