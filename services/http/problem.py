"""Turns a failure into an HTTP response: the problem as JSON, and the headers that control a client's retries.

The headers are derived from the problem alone, so every hop sends the same ones:

- `x-should-retry: false`. Otherwise, OpenAI's clients would repeat the retries that Rollyard has already made, or run
  an episode twice.
- `x-request-id` and `retry-after`, with the values that the external endpoint sent.
"""

from __future__ import annotations

from rollyard.records.errors import Failure
from rollyard.records.types import Problem
from rollyard.services.http.request import RawResponse
from rollyard.services.http.response_failures import PROBLEM_TYPE

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
