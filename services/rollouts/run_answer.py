"""Encodes and parses the body that `/run` returns, so that its large `response` can be stored verbatim.

The agent puts the response last and sends its length in a header. The collector then parses the body in two parts: the
short part becomes a dict, to which it adds its own keys; the response is only checked to be a JSON object on one line.
The row is written from the dict, so it contains each key once, even if the agent sent duplicates. For other
programs the body is ordinary JSON, and a body without the header is parsed in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

import orjson

from rollyard.records.errors import Failure, FailureKind
from rollyard.records.rewards import check_reward, tidy
from rollyard.records.rollout_keys import PROMPT
from rollyard.records.rollout_types import RolloutRow
from rollyard.records.types import Json
from rollyard.services.http.request import HttpResponse
from rollyard.services.server.settings import is_secret, redacted

RESPONSE_BYTES_HEADER = "x-rollyard-response-bytes"
"""Header with the length in bytes of the response, which ends just before the body's closing brace."""
_MEMBER = b'"response":'
_MAX_DIGITS = 10
"""Maximum number of digits in the header's value."""


def encode_response(response: Mapping[str, Any]) -> bytes:
    """Return `response` as JSON. Raises TypeError if it is nested too deeply to be part of a row."""
    return orjson.dumps({"response": response})[len(_MEMBER) + 1 : -1]


def encode_row(row: Mapping[str, Any], response: bytes) -> bytes:
    """Return `row` as JSON with `response` as its last member. Raises TypeError if a value is not valid in JSON."""
    complete = dict(row)
    complete.pop("response", None)  # so that it becomes the last key
    complete["response"] = orjson.Fragment(response)
    return orjson.dumps(complete)


def decode_row(body: bytes, response_bytes: str | None) -> Any:
    """Parse a body. `response` becomes an `orjson.Fragment` if the header contains its correct length."""
    row = None if response_bytes is None else _parse_in_two_parts(body, response_bytes)
    return orjson.loads(body) if row is None else row


def _parse_in_two_parts(body: bytes, response_bytes: str) -> Json | None:
    """Return the row, or None if the body does not match the header and must be parsed in one piece."""
    if not (response_bytes.isascii() and response_bytes.isdigit() and len(response_bytes) <= _MAX_DIGITS):
        return None
    start = len(body) - 1 - int(response_bytes)
    if start < len(_MEMBER) or not body.startswith(_MEMBER, start - len(_MEMBER)) or not body.endswith(b"}"):
        return None
    response = body[start:-1]
    if b"\n" in response:
        return None
    try:
        row = orjson.loads(body[:start] + b"null}")
        checked = orjson.loads(response)
    except orjson.JSONDecodeError:
        return None
    if not isinstance(row, dict) or not isinstance(checked, dict) or row.get("response", checked) is not None:
        return None
    row["response"] = orjson.Fragment(response)
    return row


def parse_row(response: HttpResponse, agent: str) -> RolloutRow:
    """Parse the response. Raises Failure malformed_answer unless it is an object with a finite reward."""
    try:
        row = decode_row(response.body, response.headers.get(RESPONSE_BYTES_HEADER))
    except orjson.JSONDecodeError as error:
        detail = f"/run did not return JSON ({error}): {response.body[:200]!r}"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error
    if not isinstance(row, dict):
        detail = f"/run returned a JSON {type(row).__name__}; expected an object"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent)
    _check_failure_class(row, agent)
    check_reward(row, "/run", agent)
    row["reward"] = tidy(row["reward"])
    return cast(RolloutRow, row)


def without_keys(body: bytes) -> bytes:
    """Return the body of a `/run` request without credentials: those of the episode's policy, and in parameters such as
    `extra_headers`. The task itself is unchanged.
    """
    row = orjson.loads(body)
    shown = {key: redacted(value, key) if key.startswith("policy_") else value for key, value in row.items()}
    if isinstance(params := row.get("responses_create_params"), dict):
        shown["responses_create_params"] = {
            key: value if key in PROMPT else redacted(value, key) for key, value in params.items()
        }
    return body if shown == row else orjson.dumps(shown)


def _without_keys_in_params(row: RolloutRow) -> RolloutRow:
    params = cast(Json, row.get("responses_create_params"))
    if not isinstance(params, dict):
        return row
    carriers = [
        name
        for name in params
        if name.startswith("extra_") or name.endswith("headers") or (name not in PROMPT and is_secret(name))
    ]
    if not carriers:
        return row
    shown = {**params, **{key: redacted(params[key], key) for key in carriers}}
    return cast(RolloutRow, {**row, "responses_create_params": shown})


def _check_failure_class(row: dict[str, object], agent: str) -> None:
    """Raise the Failure that an agent of NeMo Gym reports with status 200; a terminal one is final."""
    failure_class = row.get("_ng_failure_class")
    if failure_class is None and not row.get("_ng_no_persist"):
        return
    kind = FailureKind.BAD_TASK if row.get("_ng_failure_terminal") else FailureKind.SERVER_ERROR
    reported = "no result to keep" if failure_class is None else f"the failure class {failure_class!r:.100}"
    message = row.get("error") or row.get("_ng_failure_reason") or ""
    detail = f"/run reported {reported}" + (f": {message!s:.500}" if message else "")
    raise Failure(kind, detail, server=agent)


def encode_line(row: RolloutRow, agent: str) -> bytes:
    """Encode the row without keys in its parameters. Raises Failure if it is nested deeper than orjson writes."""
    try:
        return orjson.dumps(_without_keys_in_params(row))
    except TypeError as error:
        detail = f"/run's response cannot be stored ({error})"
        raise Failure(FailureKind.MALFORMED_ANSWER, detail, server=agent) from error
