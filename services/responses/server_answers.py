"""Parses responses from the run's servers: JSON objects, including turns of the model."""

from __future__ import annotations

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json
from rollyard.services.http.problem import with_server
from rollyard.services.responses.lenient_json import loads
from rollyard.services.responses.response_validity import check_response


def read_answer(body: bytes, server: str) -> Json:
    """Parse the JSON object in the response of `server`. Raises Failure malformed_answer with the server's name."""
    try:
        value = loads(body)
    except ValueError as error:
        excerpt = body[:200].decode("utf-8", "replace")
        detail = f"the response is not JSON ({error}): {excerpt!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server) from error
    if not isinstance(value, dict):
        detail = f"the response is a JSON {type(value).__name__}; expected a JSON object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=server)
    return value


def read_response(body: bytes, server: str) -> Json:
    """Parse the Response object from the model server `server`.

    Raises Failure, with the server's name, unless it is a turn of the model. A model server from a different framework
    may forward the output of a broken engine.
    """
    response = read_answer(body, server)
    try:
        check_response(response)
    except Failure as failure:
        raise with_server(failure, server) from failure
    return response
