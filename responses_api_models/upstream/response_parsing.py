"""Parses an endpoint's responses: JSON objects, error messages and Retry-After headers."""

from __future__ import annotations

import contextlib
import email.utils
import math
import re
import time
from collections.abc import Callable

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.types import Json, is_number, mapping, text_of
from rollyard.services.http.request import HttpResponse
from rollyard.services.responses.response_validity import (
    check_completion,
    check_response,
    loads,
    normalize_calls,
    read_items,
)

EXCERPT_CHARS = 300
_TRANSIENT = frozenset({408, 409, 425})
RETRY_AFTER_CAP_S = 60.0
"""Maximum pause that an endpoint can request."""
OVERFLOW_CODE = "context_length_exceeded"
"""OpenAI's error code for a conversation that no longer fits in the context; clients check for it."""
_OVERFLOW = re.compile(
    r"maximum (context|model|input) length|longer than the (maximum|model)|prompt is too long"
    r"|exceeds? (the )?(available |model's )?context|max_tokens must be at least 1, got 0",
    re.IGNORECASE,
)


def json_object(body: bytes) -> Json:
    try:
        value = loads(body)
    except ValueError as error:
        raise _malformed(f"a body that is not JSON ({error})", body) from error
    if not isinstance(value, dict):
        raise _malformed(f"a JSON {type(value).__name__} instead of an object", body)
    return value


def _read_object(body: bytes) -> tuple[Json, bool]:
    """Parse the body as `json_object` does. Return also whether clients can read it as it is: not all read halves of
    surrogate pairs, and none reads what is not UTF-8.
    """
    try:
        value = orjson.loads(body)
    except orjson.JSONDecodeError:
        return json_object(body), False
    return (value if isinstance(value, dict) else json_object(body)), True


def json_bytes(body: bytes) -> bytes:
    """Return the body unchanged. Its first and last bytes are checked to detect error pages and truncated responses."""
    if body[:1] != b"{" or body.rstrip()[-1:] != b"}":
        json_object(body)  # raises a detailed error; leading whitespace is fine
    return body


def completion_reader(request: Json) -> Callable[[bytes], bytes]:
    """Return a function that checks the body of an answer, and returns it with what every client can read.

    It raises Failure if the body is not a chat completion with output from the model that answers the request.
    """
    requested = choices_of(request)

    def read(body: bytes) -> bytes:
        completion, is_readable = _read_object(body)
        check_completion(completion, requested)
        messages = [mapping(mapping(choice).get("message")) for choice in completion["choices"]]
        changed = [message for message in messages if normalize_calls(message)]
        return body if is_readable and not changed else encode_request(completion)

    return read


def choices_of(request: Json) -> int:
    number = request.get("n")
    return int(number) if isinstance(number, int | float) and is_number(number) and number > 1 else 1


def response_bytes(body: bytes) -> bytes:
    """Return the body of a Response, with what every client can read; unchanged if it is.

    Raises Failure if it is not a Response with output from the model.
    """
    response, is_readable = _read_object(body)
    check_response(response)
    read = read_items(response["output"])
    changed = any(item is not before for item, before in zip(read, response["output"], strict=True))
    return body if is_readable and not changed else encode_request({**response, "output": read})


def encode_request(request: Json | list[Json]) -> bytes:
    """Encode a request, or a part of one. Raises Failure bad_request if that fails, e.g. for one nested too deeply."""
    try:
        return orjson.dumps(request)
    except TypeError as error:
        raise Failure(FailureKind.BAD_REQUEST, f"the request cannot be encoded as JSON ({error})") from error


def _malformed(found: str, body: bytes) -> Failure:
    return Failure(FailureKind.MALFORMED_ANSWER, f"the endpoint answered 200 with {found}: {_excerpt(body)}")


def retry_after_s(header: str | None) -> float:
    """Return the seconds that a Retry-After header requests, up to RETRY_AFTER_CAP_S; 0 if it is invalid."""
    if not header:
        return 0.0
    seconds = 0.0
    try:
        seconds = float(header)
    except ValueError:
        with contextlib.suppress(ValueError, OverflowError, OSError):
            seconds = email.utils.parsedate_to_datetime(header).timestamp() - time.time()
    return 0.0 if math.isnan(seconds) else min(max(seconds, 0.0), RETRY_AFTER_CAP_S)


def upstream_failure(answer: HttpResponse, endpoint: str, hint: str) -> Failure:
    status = answer.status
    message = error_message(answer.body)
    detail = f"{endpoint} answered {status}: {message}"
    code = ""
    with contextlib.suppress(orjson.JSONDecodeError):
        code = text_of(mapping(mapping(orjson.loads(answer.body)).get("error")).get("code"))
    shown: int | None = None
    if status == 206:
        kind = FailureKind.MALFORMED_ANSWER
        detail = f"{endpoint} answered 206 (partial content), and no part was requested: {message}"
    elif status == 429:
        kind = FailureKind.RATE_LIMITED
    elif status >= 500 or status in _TRANSIENT:
        kind, shown = FailureKind.UPSTREAM_ERROR, status if status in _TRANSIENT else None
    elif status in (400, 413, 422) and (code == OVERFLOW_CODE or _OVERFLOW.search(message)):
        kind, code = FailureKind.CONTEXT_OVERFLOW, OVERFLOW_CODE
    else:
        kind, shown = FailureKind.UPSTREAM_REFUSED, status if status >= 400 else None
        detail += f" ({hint})" if hint else ""
    # Problem fields that services/http/request.py converts back to headers, with the same cap for our own callers.
    fields: dict[str, str] = {}
    if request_id := answer.headers.get("x-request-id"):
        fields["request_id"] = request_id
    if asked := answer.headers.get("retry-after"):
        detail += f" (it asks to wait: Retry-After {asked[:50]!r}; at most {RETRY_AFTER_CAP_S:g} s are waited)"
        if seconds := retry_after_s(asked):
            fields["retry_after"] = asked if seconds < RETRY_AFTER_CAP_S else f"{RETRY_AFTER_CAP_S:g}"
    failure = Failure(kind, detail, status=shown, upstream_status=status, code=code)
    return Failure.of(failure.problem.model_copy(update=fields))


def error_message(body: bytes) -> str:
    with contextlib.suppress(orjson.JSONDecodeError):
        value = mapping(orjson.loads(body))
        error = value.get("error")
        nested = error.get("message") if isinstance(error, dict) else error
        for message in (nested, value.get("message"), value.get("detail")):
            if isinstance(message, str):
                return message[:EXCERPT_CHARS]
    return _excerpt(body)


def _excerpt(body: bytes) -> str:
    text = body[: EXCERPT_CHARS * 4].decode("utf-8", "replace")[:EXCERPT_CHARS]
    return text.strip() or "(an empty body)"
