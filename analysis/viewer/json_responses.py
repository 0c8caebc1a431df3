"""Responses of the viewer's API: JSON that browsers do not store, and problem documents (RFC 9457)."""

from __future__ import annotations

from collections.abc import Callable

from fastapi.responses import Response
from starlette.concurrency import run_in_threadpool

from rollyard.records.types import Problem, Record

NO_STORE = {"cache-control": "no-store"}
PROBLEM_TYPE = "application/problem+json"


async def json_response(make: Callable[[], Record]) -> Response:
    """Call `make` in a thread, because it may read files, and return its record."""
    body = await run_in_threadpool(lambda: make().model_dump_json())
    return Response(body, media_type="application/json", headers=NO_STORE)


def problem(status: int, title: str, detail: str, instance: str = "") -> Response:
    """Return an error response."""
    found = Problem(status=status, title=title, detail=detail, instance=instance, server="ng_viewer")
    return Response(found.model_dump_json(exclude_none=True), status, media_type=PROBLEM_TYPE)
