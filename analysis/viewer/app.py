"""Viewer: the page, its API, and everything that they read in the background.

Files are read and runs are sorted in worker threads. The routes of a topic are in the module of that topic.
"""

from __future__ import annotations

import asyncio
import logging
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, Self

from fastapi import APIRouter, FastAPI, HTTPException, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.concurrency import run_in_threadpool
from starlette.exceptions import HTTPException as StarletteHTTPException

from rollyard.analysis.charts.svg import STYLE
from rollyard.analysis.viewer.attempts import attempt_router
from rollyard.analysis.viewer.comparison import SORTS, RunDifferences, counterpart_router
from rollyard.analysis.viewer.field_routes import field_router
from rollyard.analysis.viewer.library import FileIndex, UnknownRun
from rollyard.analysis.viewer.live import LiveRun, live_router
from rollyard.analysis.viewer.note_routes import OriginOf, note_router
from rollyard.analysis.viewer.responses import json_body, json_response, problem
from rollyard.analysis.viewer.rollout_list import MAX_LINES
from rollyard.analysis.viewer.rollout_list import Query as RolloutQuery
from rollyard.analysis.viewer.run_file import Replays, RowChanged, index_of, numbers_of, rollout_view, row_line
from rollyard.analysis.viewer.series import SeriesSource, StepReader, series_router
from rollyard.analysis.viewer.token_pairs import pair_router
from rollyard.analysis.viewer.token_texts import TokenDecoder, decoded_rollout
from rollyard.analysis.viewer.training import TrainingIndex, training_router
from rollyard.records.expression_parser import ExpressionError
from rollyard.records.note_records import user_name
from rollyard.records.types import PROBLEMS

log = logging.getLogger(__name__)
STATIC = Path(__file__).parent / "static"
MAX_WANTED = 4
"""Maximum number of runs that one request for the overview opens."""
_REVALIDATE = {"cache-control": "no-cache"}


@dataclass(frozen=True)
class ViewerSettings:
    author: str | None = None
    """Author of the notes that are written in the page; None: the user's name."""
    read_only: bool = False
    threshold: float | None = None
    """Minimum reward that counts as solved; None: as the files define it."""
    workers: int | None = None
    """Number of processes that read a large file; None: one per CPU."""


class Viewer:
    """Reads the files in the background while its block runs."""

    def __init__(
        self,
        file_index: FileIndex,
        series: SeriesSource,
        replays: Replays,
        decoder: TokenDecoder | None,
        run: LiveRun,
        settings: ViewerSettings,
        origin_of: OriginOf,
    ) -> None:
        """`decoder` gives tokens their texts if these are not recorded. `run` is what the live page shows."""
        self._file_index = file_index
        self._reader = StepReader(threshold=settings.threshold, workers=settings.workers)
        routers: list[APIRouter] = [
            live_router(run, replays),
            field_router(file_index.find),
            note_router(
                file_index.find, origin_of, author=settings.author or user_name(), read_only=settings.read_only
            ),
            counterpart_router(file_index),
            attempt_router(file_index, replays),
            series_router(file_index, series, self._reader),
        ]
        if isinstance(file_index, TrainingIndex):
            routers += [training_router(file_index), pair_router(file_index, decoder)]
        self.app = viewer_app(file_index, replays, tuple(routers), decoder)

    async def __aenter__(self) -> Self:
        self._file_index.start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await asyncio.to_thread(self._file_index.close)
        await asyncio.to_thread(self._reader.close)


def viewer_app(
    file_index: FileIndex, replays: Replays, routers: tuple[APIRouter, ...] = (), decoder: TokenDecoder | None = None
) -> FastAPI:
    """Build the app that serves `file_index`. `routers` contains additional routes."""
    app = FastAPI(title="ng_viewer", docs_url=None, redoc_url=None, responses=PROBLEMS)
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

    for kind in (StarletteHTTPException, RequestValidationError, UnknownRun, ExpressionError, RowChanged, OSError):
        app.add_exception_handler(kind, _failed)
    app.add_exception_handler(Exception, _failed)
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
        return await json_response(lambda: file_index.overview(run or ()))

    @api.get("/runs/{run}/profile")
    async def profile(run: int) -> Response:
        run_file = run_of(run)
        return await json_response(lambda: numbers_of(run_file))

    @api.get("/runs/{run}/findings")
    async def findings(run: int) -> Response:
        return await json_response(lambda: run_of(run).findings.view())

    @api.get("/runs/{run}/rollouts")
    async def rollouts(run: int, query: Annotated[RolloutQuery, Query()]) -> Response:
        return await json_response(lambda: run_of(run).page(query))

    @api.get("/runs/{run}/rollouts/{task}/{repeat}")
    async def rollout(run: int, task: int, repeat: int) -> Response:
        run_file = run_of(run)
        table = run_file.table

        return await json_response(
            lambda: decoded_rollout(rollout_view(run_file, table, index_of(table, task, repeat), replays), decoder)
        )

    @api.get("/runs/{run}/rollouts/{task}/{repeat}/raw")
    async def raw(run: int, task: int, repeat: int) -> Response:
        run_file = run_of(run)
        table = run_file.table
        line, _ = await run_in_threadpool(lambda: row_line(run_file, table, index_of(table, task, repeat)))
        if not line:
            raise HTTPException(404, f"task {task}, repeat {repeat} has no row because all of its attempts failed")
        return json_body(line)

    @api.get("/compare")
    async def compare(
        first: int = 0,
        second: int = 1,
        sort: Annotated[str, Query(pattern=f"^-?({'|'.join(SORTS)})$")] = "task",
        start: Annotated[int, Query(ge=0)] = 0,
        limit: Annotated[int, Query(ge=0, le=MAX_LINES)] = 100,
    ) -> Response:
        pair = run_of(first).number, run_of(second).number
        return await json_response(lambda: differences.of(*pair).page(pair, sort, start, limit))

    return api


async def _failed(request: Request, error: Exception) -> Response:
    path = request.url.path
    match error:
        case StarletteHTTPException():
            title = {404: "not found", 405: "method not allowed"}.get(error.status_code, "refused")
            answer = problem(error.status_code, title, str(error.detail), path)
            answer.headers.update(error.headers or {})  # Allow, of a method that is not allowed
            return answer
        case RequestValidationError():
            errors = "; ".join(f"{'.'.join(map(str, one['loc'][1:]))}: {one['msg']}" for one in error.errors())
            return problem(422, "invalid request", errors, path)
        case ExpressionError():
            return problem(422, "invalid expression", str(error), path)
        case UnknownRun():
            return problem(404, "not found", str(error), path)
        case RowChanged():
            return problem(409, "file changed", f"{error}; try again in a moment", path)
        case OSError():
            return problem(503, "unreadable file", f"{error.filename}: {error.strerror}", path)
    log.error("%s: internal error", path, exc_info=error)
    return problem(500, "internal error", f"{type(error).__name__}: {error}", path)
