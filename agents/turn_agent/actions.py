"""Extracts the action for the environment from a message of the model."""

from __future__ import annotations

import re

from rollyard.services.rollout_types import Response, ResponseItem


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
    return "".join(_texts(item) for item in response["output"] if item.get("type") == "message")


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


def _texts(message: ResponseItem) -> str:
    content = message.get("content")
    if not isinstance(content, list):
        return content if isinstance(content, str) else ""
    texts = (part.get("text") for part in content if isinstance(part, dict) and part.get("type") == "output_text")
    return "".join(text for text in texts if isinstance(text, str))
