"""Turns errors into HTTP responses `{"detail": ...}`, which the clients of both protocols read."""

from __future__ import annotations

import logging

from fastapi import FastAPI, Request
from fastapi.responses import JSONResponse

from rollyard.records.errors import Failure
from rollyard.services.interop.serving.json_body import InvalidBody
from rollyard.services.interop.serving.session_store import SessionLimit
from rollyard.services.interop.serving.task_list import UnknownTask

log = logging.getLogger(__name__)


def handle_errors(app: FastAPI, *, invalid_status: int) -> None:
    """Install the handlers. `invalid_status`: the protocol's status for a request that is not valid."""

    async def invalid(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, invalid_status)

    async def full(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": str(error)}, 503)

    async def failed(request: Request, error: Exception) -> JSONResponse:
        assert isinstance(error, Failure)
        return JSONResponse({"detail": error.problem.detail}, error.problem.status)

    async def internal(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"detail": "internal error; the server's log has the details"}, 500)

    app.add_exception_handler(InvalidBody, invalid)
    app.add_exception_handler(UnknownTask, invalid)
    app.add_exception_handler(SessionLimit, full)
    app.add_exception_handler(Failure, failed)
    app.add_exception_handler(Exception, internal)
