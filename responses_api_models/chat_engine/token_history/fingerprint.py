"""Hashes a conversation to detect whether its history was edited after it was recorded."""

from __future__ import annotations

import hashlib
from typing import Any

import orjson

from rollyard.records.types import Json
from rollyard.services.responses.tool_calls import read_arguments, read_name, sendable_arguments, sendable_name


class Fingerprint:
    """A running hash of a request's tools, its template arguments and the messages added so far.

    It omits what the conversion to Responses items and back can change: call ids, reasoning, surrounding whitespace.
    """

    def __init__(self, request: Json) -> None:
        beginning = orjson.dumps([request.get("tools"), request.get("chat_template_kwargs")])
        self._hash = hashlib.sha256(beginning)

    def add(self, messages: list[Json]) -> str:
        """Append messages and return the updated fingerprint."""
        for message in messages:
            self._hash.update(orjson.dumps(_essence(message)))
        return self._hash.hexdigest()[:24]


def _essence(message: Json) -> list[Any]:
    content = message.get("content") or ""
    if isinstance(content, str):
        if message.get("role") == "assistant":
            # The content may contain reasoning, which has no end tag if it was truncated.
            content = content.rpartition("</think>")[2].partition("<think>")[0]
        content = content.strip()
    return [message.get("role"), content, [_normalized_call(call) for call in message.get("tool_calls") or ()]]


def _normalized_call(call: Any) -> Any:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        return call  # the engine rejects it with its own message
    # Normalized to the form of a sendable call, because a server in between may have normalized it.
    arguments = sendable_arguments(read_arguments(function.get("arguments")))
    return [sendable_name(read_name(function.get("name"))), arguments]
