"""Reads the JSON objects that clients send, and explains what is wrong with the others."""

from __future__ import annotations

from typing import Any

import orjson
from starlette.requests import Request

from rollyard.records.types import Json

MAX_BODY = 16 * 1024 * 1024
"""Maximum size of a request body or WebSocket message, in bytes."""


class InvalidBody(ValueError):
    """The client's message is unusable. The text says what was found and what was expected."""

    def __init__(self, text: str, *, is_json: bool = True) -> None:
        super().__init__(text)
        self.is_json = is_json


def parse_object(text: bytes | str) -> Json:
    """Parse a JSON object. Raises InvalidBody."""
    try:
        value: Any = orjson.loads(text)
    except (orjson.JSONDecodeError, UnicodeEncodeError) as error:
        raise InvalidBody(f"the message is not JSON: {error}", is_json=False) from error
    if not isinstance(value, dict):
        raise InvalidBody(f"the message is a JSON {type(value).__name__}; expected an object")
    return value


async def read_object(request: Request) -> Json:
    """Read the body of a request as a JSON object; an empty body is an empty object. Raises InvalidBody."""
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MAX_BODY:
            raise InvalidBody(f"the body exceeds {MAX_BODY} bytes")
    return parse_object(bytes(body)) if body.strip() else {}


def object_in(message: Json, name: str) -> Json:
    """Return the object in a field; an absent field is an empty object. Raises InvalidBody."""
    value = message.get(name)
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise InvalidBody(f"{name} is a JSON {type(value).__name__}; expected an object")
    return value


def text_in(message: Json, name: str) -> str:
    """Return the non-empty string in a field. Raises InvalidBody."""
    value = message.get(name)
    if not isinstance(value, str) or not value:
        raise InvalidBody(f"{name} is {value!r:.100}; expected a non-empty string")
    return value
