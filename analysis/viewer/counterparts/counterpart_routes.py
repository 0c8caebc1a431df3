"""Serves the counterparts of a rollout."""

from __future__ import annotations

from fastapi import APIRouter, HTTPException
from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.analysis.viewer.counterparts.counterparts import counterparts
from rollyard.analysis.viewer.index.library import FileIndex


def counterpart_router(index: FileIndex) -> APIRouter:
    """Build the route. `index` has the opened files."""
    router = APIRouter(prefix="/api")

    @router.get("/runs/{run}/rollouts/{task}/{repeat}/counterparts")
    async def of_rollout(run: int, task: int, repeat: int) -> Response:
        run_file = index.find(run)
        found = await run_in_threadpool(lambda: counterparts(run_file, task, repeat, index.runs))
        if found is None:
            raise HTTPException(404, f"task {task}, repeat {repeat} is not in the part of the file read so far")
        return Response(found.model_dump_json(), media_type="application/json", headers={"cache-control": "no-store"})

    return router
