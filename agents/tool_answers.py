"""Turns an environment's response to a tool call into what the model reads.

A response of any status is text for the model, as in NeMo Gym's simple_agent: an environment rejects a model's call
with a 4xx, and its code may fail on it with a 5xx. If these were failures, a model could get another attempt with a
call that breaks the tool. Only a Failure that a server of Rollyard reports stays one.
"""

from __future__ import annotations

from dataclasses import dataclass

import orjson

from rollyard.records.types import Json
from rollyard.services.http.client import is_foreign
from rollyard.services.http.request import HttpResponse, raise_for_status, reported_failure

_PARTS = ("input_text", "input_image", "input_file")


@dataclass(frozen=True, slots=True)
class ToolAnswer:
    """The result of a tool call, as the model will read it."""

    output: str | list[Json]
    """Text, or Responses content parts such as images, if the environment returned content parts."""
    done: bool


def answer_of(response: HttpResponse, server: str) -> ToolAnswer:
    """Return what the model reads of the response to `POST /<tool>`.

    Raises the Failure that the response reports, or Failure server_error for a redirect.
    """
    if response.status >= 400:
        if failure := reported_failure(response, server):
            raise failure
        return ToolAnswer(response.body.decode("utf-8", "replace"), False)
    body = raise_for_status(response, server).body
    if parts := _content_parts(body):
        return ToolAnswer(parts, any(_is_done(part.get("text", "")) for part in parts))
    # NeMo Gym's agent passes on the body unchanged, and environments that read the conversation rely on it.
    text = body.decode("utf-8", "replace") if is_foreign(response) else _text_for_model(body)
    return text_answer(text)


def text_answer(text: str) -> ToolAnswer:
    """Return the answer for a tool's text, which ends the episode if it is a JSON object with `"done": true`."""
    return ToolAnswer(text, _is_done(text))


def error_answer(text: str) -> ToolAnswer:
    return ToolAnswer(orjson.dumps({"error": text}).decode(), False)


def _text_for_model(body: bytes) -> str:
    """Return a tool's result as the model reads it: a JSON string is decoded, and any other JSON stays unchanged."""
    if body.startswith(b'"'):
        try:
            return str(orjson.loads(body))
        except orjson.JSONDecodeError:
            pass
    return body.decode("utf-8", "replace")


def _content_parts(body: bytes) -> list[Json]:
    """Return a tool's result if it is a list of content parts, which a multimodal model receives unchanged; else []."""
    if not body.startswith(b"[") or b'"input_' not in body[:64]:
        return []
    try:
        parts: list[Json] = orjson.loads(body)
    except orjson.JSONDecodeError:
        return []
    return parts if all(isinstance(part, dict) and part.get("type") in _PARTS for part in parts) else []


def _is_done(text: str) -> bool:
    if '"done"' not in text:
        return False
    try:
        answer = orjson.loads(text)
    except orjson.JSONDecodeError:
        return False
    return isinstance(answer, dict) and answer.get("done") is True
