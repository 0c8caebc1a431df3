"""Extracts the action for the environment from a message of the model."""

from __future__ import annotations

import re
from typing import cast

from rollyard.records.rollout_types import Response, ResponseItem
from rollyard.records.types import Json
from rollyard.services.responses import response_validity


class ActionTag:
    """Finds the last `<tag>...</tag>` in a message, ignoring case."""

    def __init__(self, name: str) -> None:
        # An action does not contain a tag: in "<a>up <a>down</a>" the action is "down". This keeps the search linear.
        self._pattern = re.compile(rf"<{name}>((?:(?!</?{name}>).)*)</{name}>", re.IGNORECASE | re.DOTALL)

    def action_in(self, text: str) -> str | None:
        """Return the stripped action; None if the text contains no complete tag."""
        found: list[str] = self._pattern.findall(text)
        return found[-1].strip() if found else None


def message_text(response: Response) -> str:
    """Return the text of all messages in a turn, without the reasoning."""
    messages = [item for item in cast(list[Json], response["output"]) if item.get("type", "message") == "message"]
    return "".join(response_validity.message_text(item) for item in messages)


def with_message(response: Response, text: str) -> Response:
    """Return the response with a single message, `text`, as its output."""
    content = [{"type": "output_text", "text": text, "annotations": []}]
    message: ResponseItem = {
        "id": "msg_action",
        "type": "message",
        "role": "assistant",
        "status": "completed",
        "content": content,
    }
    return {**response, "output": [message]}
