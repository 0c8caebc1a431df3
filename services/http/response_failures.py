"""Reads the Failure that a server of the run reports in its response."""

from __future__ import annotations

import contextlib

from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Problem
from rollyard.services.http.transport import HttpResponse

PROBLEM_TYPE = "application/problem+json"


def raise_for_status(response: HttpResponse, server: str) -> HttpResponse:
    """Return the response if it is a complete answer (2xx); otherwise raise the Failure that it reports."""
    if response.succeeded:
        return response
    if response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        # A problem of another stack may lack required fields; it is then reported like any other error response.
        with contextlib.suppress(ValidationError):
            raise with_server(Failure.of(Problem.model_validate_json(response.body)), server)
    excerpt = response.body[:500].decode("utf-8", "replace")
    kind = FailureKind.RATE_LIMITED if response.status == 429 else FailureKind.SERVER_ERROR
    raise Failure(kind, f"status {response.status}: {excerpt}", server=server, upstream_status=response.status)


def with_server(failure: Failure, server: str) -> Failure:
    """Return the failure with `server` as its origin, unless it already names one."""
    if failure.problem.server:
        return failure
    return Failure.of(failure.problem.model_copy(update={"server": server}))


def reported_failure(response: HttpResponse, server: str) -> Failure | None:
    """Return the Failure that one of Rollyard's servers reports in an error response; None for any other response."""
    if not response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        return None
    try:
        problem = Problem.model_validate_json(response.body)
    except ValidationError:
        return None
    return with_server(Failure.of(problem), server) if problem.server else None
