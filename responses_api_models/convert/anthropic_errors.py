"""Error responses in the format of Anthropic's API, which its clients convert to their exceptions."""

from __future__ import annotations

import contextlib

import orjson

from rollyard.records.types import Json
from rollyard.services.http.problem import PROBLEM_TYPE
from rollyard.services.http.request import RawResponse

_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
    504: "timeout_error",
    529: "overloaded_error",
}


def error_body(status: int, message: str, problem: Json | None = None) -> Json:
    """Return the body of an error response. `problem`: Rollyard's description of the same error."""
    kind = _TYPES.get(status, "invalid_request_error" if status < 500 and status != 499 else "api_error")
    error: Json = {"type": kind, "message": message}
    return {"type": "error", "error": {**error, "problem": problem} if problem else error}


def as_anthropic_error(response: RawResponse) -> RawResponse:
    """Return an error response in Anthropic's format, with the same status and headers."""
    described: Json = {}
    with contextlib.suppress(orjson.JSONDecodeError):
        parsed = orjson.loads(response.body)
        described = parsed if isinstance(parsed, dict) else {}
    nested = described.get("error")
    message = nested.get("message") if isinstance(nested, dict) else described.get("detail")
    shown = message if isinstance(message, str) else response.body[:300].decode("utf-8", "replace")
    problem = described if response.content_type == PROBLEM_TYPE.encode() else None
    return RawResponse(
        orjson.dumps(error_body(response.status, shown, problem)), response.status, headers=response.headers
    )
