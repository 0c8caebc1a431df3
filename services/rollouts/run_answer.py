"""The answer of `/run`: its response, which is nearly all of it, is encoded by the agent once and stored as it came.

The agent puts the response last and gives its length in a header. The collector then parses the answer in two parts:
the short one becomes a dict, to which it adds its own keys, and the response is only checked to be a JSON object on one
line. The row is written from the dict, so it holds each of its keys once, whatever the agent sent. To programs that do
not know the header the answer is JSON like any other, and an answer without the header is parsed as a whole.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson

from rollyard.services.types import Json

RESPONSE_BYTES_HEADER = "x-rollyard-response-bytes"
"""Length of the response, which stands at the end of the answer, just before the closing brace."""
_MEMBER = b'"response":'
_LONGEST_LENGTH = 10
"""Digits of the header's number."""


def encode_response(response: Mapping[str, Any]) -> bytes:
    """Raises TypeError for what is nested too deep to be written as part of a row."""
    return orjson.dumps({"response": response})[len(_MEMBER) + 1 : -1]


def encode_row(row: Mapping[str, Any], response: bytes) -> bytes:
    """`row` with an encoded response in the place of its own. Raises TypeError for what JSON cannot hold."""
    written = dict(row)
    written.pop("response", None)  # so that it is the last key, wherever it stood
    written["response"] = orjson.Fragment(response)
    return orjson.dumps(written)


def decode_row(body: bytes, response_bytes: str | None) -> Any:
    """The JSON value of an answer; `response` is an `orjson.Fragment` where the header gives its true length.

    Raises orjson.JSONDecodeError.
    """
    row = None if response_bytes is None else _in_two_parts(body, response_bytes)
    return orjson.loads(body) if row is None else row


def _in_two_parts(body: bytes, response_bytes: str) -> Json | None:
    """None for an answer that is not what the header says: it is then parsed as one."""
    if not (response_bytes.isascii() and response_bytes.isdigit() and len(response_bytes) <= _LONGEST_LENGTH):
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
