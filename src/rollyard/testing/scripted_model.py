"""A model server that returns scripted turns and records the requests that it receives."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import orjson

from rollyard.records.errors import Failure, FailureKind, OperatorError
from rollyard.records.types import Json
from rollyard.responses_api_models.base import ModelServer
from rollyard.services.http.request import RawRequest
from rollyard.services.server.app import Context, Server
from rollyard.services.server.settings import ServerSettings

Turn = str | Json | Sequence[str | Json]
"""The model's output for one request: text, an item such as `calls(...)`, or several of these."""
Turns = Sequence[Turn | Callable[[Json], Turn]] | Callable[[Json], Turn]
"""The turns in order, or a function that returns the turn for a request. Each turn may also be such a function."""


def says(text: str) -> Json:
    """Return a message from the model."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    return {"id": "m", "type": "message", "role": "assistant", "status": "completed", "content": content}


def calls(name: str, arguments: Any = None, call_id: str | None = None, /, **named: Any) -> Json:
    """Return a tool call by the model, such as `calls("guess", number=42)`.

    `arguments` replaces the keyword arguments. It is an object, or the text that the model wrote, which may be invalid.
    """
    given = named if arguments is None else arguments
    text = given if isinstance(given, str) else orjson.dumps(given).decode()
    made = call_id or f"call_{uuid.uuid4().hex}"
    return {"id": made, "type": "function_call", "call_id": made, "name": name, "arguments": text}


@dataclass
class Script:
    """The turns of a scripted model, and the requests that it received."""

    turns: Turns
    requests: list[Json] = field(default_factory=list)
    """The requests so far, oldest first."""
    status: str | None = "completed"
    incomplete: Json | None = None
    """`incomplete_details` for the status `incomplete`, such as `{"reason": "max_output_tokens"}`."""
    repeat: bool = False
    """Repeat the last turn; otherwise a request after the last turn is a failure."""

    def __post_init__(self) -> None:
        """Raises OperatorError if `turns` is a single turn instead of a list of turns."""
        if not callable(self.turns) and (isinstance(self.turns, str) or not isinstance(self.turns, Sequence)):
            found = f"{self.turns!r:.100}"
            raise OperatorError(f"turns is {found}; expected a list of turns, such as ['Hello.'], or a function")

    def model(self, context: Context) -> Server:
        """Return a model server that follows this script."""
        script = self

        class Scripted(ModelServer[ServerSettings]):
            async def responses(self, request: Json, call: RawRequest) -> Json:
                return script.response(request)

        return Scripted(ServerSettings(), context)

    def response(self, request: Json) -> Json:
        """Return the next turn as a Response object. Raises Failure if the script has no more turns."""
        self.requests.append(request)
        return {
            "id": f"resp_{len(self.requests)}",
            "object": "response",
            "created_at": 0,
            "model": "scripted",
            "status": self.status,
            "incomplete_details": self.incomplete,
            "output": _items(self._turn(request)),
            "usage": {"input_tokens": 10, "output_tokens": 2, "total_tokens": 12},
            "parallel_tool_calls": True,
            "tool_choice": "auto",
            "tools": [],
        }

    def _turn(self, request: Json) -> Turn:
        if callable(self.turns):
            return self.turns(request)
        index = len(self.requests) - 1
        if index >= len(self.turns) and not (self.repeat and self.turns):
            written = f"{len(self.turns)} turn{'' if len(self.turns) == 1 else 's'}"
            detail = (
                f"the script has {written}, but the model was called {len(self.requests)} times: add a turn, such as a "
                "text without a tool call, which ends the episode"
            )
            raise Failure(FailureKind.BAD_REQUEST, detail)
        turn = self.turns[min(index, len(self.turns) - 1)]
        return turn(request) if callable(turn) else turn


def _items(turn: Turn) -> list[Json]:
    parts = [turn] if isinstance(turn, str | dict) else turn
    return [says(part) if isinstance(part, str) else part for part in parts]
