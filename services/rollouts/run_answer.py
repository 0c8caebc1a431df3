"""Encodes and parses the body that `/run` returns, so that its large `response` can be stored verbatim.

The agent puts the response last and sends its length in a header. The collector then parses the body in two parts: the
short part becomes a dict, to which it adds its own keys; the response is only checked to be a JSON object on one line.
The row is written from the dict, so it contains each key once, even if the agent sent duplicates. For other
programs the body is ordinary JSON, and a body without the header is parsed in one piece.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.records.types import Json

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
    """Parse a body. `response` becomes an `orjson.Fragment` if the header contains its correct length.

    Raises orjson.JSONDecodeError if the body is not valid JSON.
    """
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
