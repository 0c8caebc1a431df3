"""Turns a failure into an HTTP response: the problem as JSON, and the headers that control a client's retries.

The headers are derived from the problem alone, so every hop sends the same ones:

- `x-should-retry: false`. Otherwise, OpenAI's clients would repeat the retries that Rollyard has already made, or run
  an episode twice.
- `x-request-id` and `retry-after`, with the values that the external endpoint sent.
"""

from __future__ import annotations

import contextlib

from pydantic import ValidationError

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Problem
from rollyard.services.http.request import RawResponse
from rollyard.services.http.transport import HttpResponse

PROBLEM_TYPE = "application/problem+json"


def raise_for_status(response: HttpResponse, server: str) -> HttpResponse:
    """Return the response if it is a complete answer (2xx); otherwise raise the Failure that it reports."""
    if response.succeeded:
        return response
    if (problem := _problem_of(response)) is not None:
        raise with_server(Failure.of(problem), server)
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
    problem = _problem_of(response)
    return with_server(Failure.of(problem), server) if problem is not None and problem.server else None


def _problem_of(response: HttpResponse) -> Problem | None:
    """Return the problem in the response. One of another stack may lack required fields; then it is none."""
    if response.headers.get("content-type", "").startswith(PROBLEM_TYPE):
        with contextlib.suppress(ValidationError):
            return Problem.model_validate_json(response.body)
    return None


_HEADERS = (("request_id", b"x-request-id"), ("retry_after", b"retry-after"))
"""Members of a problem that are also sent as headers."""


def to_problem(failure: Failure, server: str, path: str) -> Problem:
    """Return the failure's problem. If it does not name a server yet, add `server` and the request path."""
    problem = failure.problem
    if problem.server:
        return problem
    return problem.model_copy(update={"server": server, "instance": problem.instance or path})


def problem_response(problem: Problem) -> RawResponse:
    extra = problem.model_extra or {}
    headers = [(name, _header(extra.get(member))) for member, name in _HEADERS]
    return RawResponse(
        problem.model_dump_json().encode(),
        problem.status,
        headers=((b"x-should-retry", b"false"), *((name, value) for name, value in headers if value)),
        content_type=PROBLEM_TYPE.encode(),
    )


def _header(value: object) -> bytes:
    """Return the encoded value, or b"" if it is not valid in a header. Problems from other stacks can be invalid."""
    return value.encode() if isinstance(value, str) and value.isascii() and value.isprintable() else b""
