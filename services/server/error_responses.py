"""Turns exceptions in a server's hot routes and FastAPI routes into problem responses, and counts them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from rollyard.records.errors import Failure, FailureKind
from rollyard.services.http.problem import problem_response, to_problem
from rollyard.services.http.request import RawResponse
from rollyard.services.server.metrics import ServerMetrics

log = logging.getLogger(__name__)


class ErrorResponses:
    """Creates the problem responses of one server and counts its failures."""

    def __init__(self, name: str, metrics: ServerMetrics) -> None:
        self._name = name
        self._metrics = metrics

    def failed(self, failure: Failure, path: str) -> RawResponse:
        """Count the failure and return it as a problem response."""
        problem = to_problem(failure, self._name, path)
        self._metrics.failure(failure.kind, here=problem.server == self._name)
        return problem_response(problem)

    def raised(self, error: BaseException, path: str) -> RawResponse:
        """Log an unexpected exception and return a problem response with status 500."""
        log.error("%s%s failed", self._name, path, exc_info=error)
        detail = f"{described(error)} (traceback in the log of {self._name})"
        return self.failed(Failure(FailureKind.SERVER_ERROR, detail), path)

    def handle_exceptions(self, app: FastAPI, paths: Callable[[], Collection[str]]) -> None:
        """Make `app` respond to exceptions with problems. `paths` returns the POST routes to list in a 404 response."""

        async def on_failure(request: Request, error: Exception) -> Response:
            assert isinstance(error, Failure)
            return _response(self.failed(error, request.url.path))

        async def on_exception(request: Request, error: Exception) -> Response:
            return _response(self.raised(error, request.url.path))

        async def on_invalid_request(request: Request, error: Exception) -> Response:
            assert isinstance(error, RequestValidationError)
            found = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in error.errors())
            return await on_failure(request, Failure(FailureKind.BAD_REQUEST, found))

        async def on_http_exception(request: Request, error: Exception) -> Response:
            assert isinstance(error, HTTPException)
            detail = f"{error.detail}: {request.method} {request.url.path}"
            if error.status_code == 404:
                detail += f" (available POST routes: {', '.join(sorted(paths()))})"
            return await on_failure(request, Failure(FailureKind.BAD_REQUEST, detail, status=error.status_code))

        app.add_exception_handler(Failure, on_failure)
        app.add_exception_handler(HTTPException, on_http_exception)
        app.add_exception_handler(RequestValidationError, on_invalid_request)
        app.add_exception_handler(Exception, on_exception)


def described(error: BaseException) -> str:
    """Return the type and message of any exception, also of one whose message cannot be printed."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception as unprintable:
        return f"{type(error).__name__} (its message cannot be printed: {type(unprintable).__name__})"


def _response(response: RawResponse) -> Response:
    headers = {name.decode(): value.decode() for name, value in response.headers}
    return Response(response.body, response.status, headers, response.content_type.decode())
