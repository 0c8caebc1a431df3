"""Builds the viewer's app, which serves the page and its API. Files are read and runs are sorted in worker threads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from rollyard.analysis.charts.style import STYLE
from rollyard.analysis.viewer.access_middleware import problem
from rollyard.analysis.viewer.api.api_records import RolloutView
from rollyard.analysis.viewer.api.comparison_view import SORTS, RunDifferences
from rollyard.analysis.viewer.api.profile_view import numbers_of
from rollyard.analysis.viewer.api.rollout_list import MAX_LINES
from rollyard.analysis.viewer.api.rollout_list import Query as RolloutQuery
from rollyard.analysis.viewer.api.rollout_view import (
    MAX_VIEWS,
    Replays,
    RowChanged,
    rollout_view,
    row_line,
    task_rollouts,
)
from rollyard.analysis.viewer.index.library import FileIndex, UnknownRun
from rollyard.analysis.viewer.index.table import Table
from rollyard.analysis.viewer.tokens.decoded_rollout import decoded_rollout
from rollyard.analysis.viewer.tokens.decoder import TokenDecoder
from rollyard.records.expressions.parse import ExpressionError
from rollyard.records.types import Record

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
MAX_WANTED = 4
"""Maximum number of runs that one request for the overview opens."""
_REVALIDATE = {"cache-control": "no-cache"}
_NO_STORE = {"cache-control": "no-store"}


def viewer_app(
    file_index: FileIndex,
    replays: Replays,
    routers: tuple[APIRouter, ...] = (),
    decoder: TokenDecoder | None = None,
) -> FastAPI:
    """Build the app that serves `file_index`. `replays` draws boards; `routers` contains additional routes. `decoder`
    gives tokens their texts if these are not recorded.
    """
    app = FastAPI(title="ng_viewer", docs_url=None, redoc_url=None)
    app.include_router(_api(file_index, replays, decoder))
    for router in routers:
        app.include_router(router)

    @app.api_route("/static/css/charts.css", methods=["GET", "HEAD"], include_in_schema=False)
    async def charts() -> FileResponse:
        return FileResponse(STYLE, media_type="text/css", headers=_REVALIDATE)

    app.mount("/static", _Static(directory=STATIC), name="static")

    @app.api_route("/", methods=["GET", "HEAD"], include_in_schema=False)
    async def page() -> FileResponse:
        return FileResponse(STATIC / "index.html", media_type="text/html", headers=_REVALIDATE)

    app.add_exception_handler(StarletteHTTPException, _http_error)
    app.add_exception_handler(RequestValidationError, _invalid_request)
    app.add_exception_handler(UnknownRun, _unknown_run)
    app.add_exception_handler(ExpressionError, _invalid_expression)
    app.add_exception_handler(RowChanged, _file_changed)
    app.add_exception_handler(OSError, _unreadable_file)
    app.add_exception_handler(Exception, _internal_error)
    return app


class _Static(StaticFiles):
    """Serves the page's files with `no-cache`, so that browsers revalidate them on every load."""

    def file_response(self, *arguments: Any, **options: Any) -> Response:
        response = super().file_response(*arguments, **options)
        response.headers.update(_REVALIDATE)
        return response


def _api(file_index: FileIndex, replays: Replays, decoder: TokenDecoder | None) -> APIRouter:
    api = APIRouter(prefix="/api")
    differences = RunDifferences(file_index.find)
    run_of = file_index.find

    @api.get("/overview")
    async def overview(run: Annotated[list[int] | None, Query(max_length=MAX_WANTED)] = None) -> Response:
        return await _json(lambda: file_index.overview(run or ()))

    @api.get("/runs/{run}/profile")
    async def profile(run: int) -> Response:
        run_file = run_of(run)
        return await _json(lambda: numbers_of(run_file))

    @api.get("/runs/{run}/rollouts")
    async def rollouts(run: int, query: Annotated[RolloutQuery, Query()]) -> Response:
        return await _json(lambda: run_of(run).page(query))

    @api.get("/runs/{run}/rollouts/{task}/{repeat}")
    async def rollout(run: int, task: int, repeat: int) -> Response:
        run_file = run_of(run)
        table = run_file.table

        def view() -> RolloutView:
            found = rollout_view(run_file, table, _index(table, task, repeat), replays)
            return decoded_rollout(found, decoder)

        return await _json(view)

    @api.get("/runs/{run}/rollouts/{task}/{repeat}/raw")
    async def raw(run: int, task: int, repeat: int) -> Response:
        run_file = run_of(run)
        table = run_file.table
        line = await run_in_threadpool(lambda: row_line(run_file, table, _index(table, task, repeat)))
        if not line:
            raise HTTPException(404, f"task {task}, repeat {repeat} has no row because all of its attempts failed")
        return Response(line, media_type="application/json", headers=_NO_STORE)

    @api.get("/runs/{run}/tasks/{task}")
    async def task_page(
        run: int,
        task: int,
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_VIEWS)] = MAX_VIEWS,
    ) -> Response:
        return await _json(lambda: task_rollouts(run_of(run), task, replays, start, limit))

    @api.get("/compare")
    async def compare(
        first: int = 0,
        second: int = 1,
        sort: Annotated[str, Query(pattern=f"^-?({'|'.join(SORTS)})$")] = "task",
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
    ) -> Response:
        pair = run_of(first).number, run_of(second).number
        return await _json(lambda: differences.of(*pair).page(pair, sort, start, limit))

    return api


async def _json(make: Callable[[], Record]) -> Response:
    """Call `make` in a thread and return its record as JSON."""
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers=_NO_STORE)


def _index(table: Table, task: int, repeat: int) -> int:
    index = table.find(task, repeat)
    if index is None:
        raise HTTPException(404, f"task {task}, repeat {repeat} is not in the part of the file read so far")
    return index


async def _http_error(request: Request, error: Exception) -> Response:
    assert isinstance(error, StarletteHTTPException)
    title = {404: "not found", 405: "method not allowed"}.get(error.status_code, "refused")
    return problem(error.status_code, title, str(error.detail), request.url.path)


async def _invalid_request(request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    errors = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
    return problem(422, "invalid request", errors, request.url.path)


async def _invalid_expression(request: Request, error: Exception) -> Response:
    return problem(422, "invalid expression", str(error), request.url.path)


async def _unknown_run(request: Request, error: Exception) -> Response:
    return problem(404, "not found", str(error), request.url.path)


async def _file_changed(request: Request, error: Exception) -> Response:
    return problem(409, "file changed", f"{error}; try again in a moment", request.url.path)


async def _unreadable_file(request: Request, error: Exception) -> Response:
    assert isinstance(error, OSError)
    return problem(503, "unreadable file", f"{error.filename}: {error.strerror}", request.url.path)


async def _internal_error(request: Request, error: Exception) -> Response:
    log.error("%s: internal error", request.url.path, exc_info=error)
    return problem(500, "internal error", f"{type(error).__name__}: {error}", request.url.path)
