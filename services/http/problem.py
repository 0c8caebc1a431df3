"""A failure as an answer: one problem JSON, and the headers by which clients decide what to do about it.

Every hop says the same, because all of it comes from the problem: `x-should-retry: false` (OpenAI's clients would
otherwise ask again on their own, and multiply tries that were made here already or play an episode twice), and what
the foreign endpoint gave to its own clients: `x-request-id`, `retry-after`.
"""

from __future__ import annotations

from rollyard.services.errors import Failure
from rollyard.services.http.client import PROBLEM_TYPE
from rollyard.services.http.request import RawResponse
from rollyard.services.types import Problem

_HEADERS = (("request_id", b"x-request-id"), ("retry_after", b"retry-after"))
"""Members of a problem that are headers, too."""


def named(failure: Failure, server: str, path: str) -> Problem:
    """What `failure` reports; the first server that meets it puts its name on it."""
    problem = failure.problem
    if problem.server:
        return problem
    return problem.model_copy(update={"server": server, "instance": problem.instance or path})


def problem_reply(problem: Problem) -> RawResponse:
    """The problem as an answer."""
    said = problem.model_extra or {}
    headers = [(name, _header(said.get(member))) for member, name in _HEADERS]
    return RawResponse(
        problem.model_dump_json().encode(),
        problem.status,
        headers=((b"x-should-retry", b"false"), *((name, value) for name, value in headers if value)),
        content_type=PROBLEM_TYPE.encode(),
    )


def _header(value: object) -> bytes:
    """The value as it may stand in a header: another stack's problem can hold anything."""
    return value.encode() if isinstance(value, str) and value.isascii() and value.isprintable() else b""
