"""Actions: which part of the model's message the environment is given."""

from __future__ import annotations

import re

from rollyard.services.rollout_types import Response, ResponseItem


class ActionTag:
    """Reads the last `<tag>...</tag>` of a message; upper and lower case are the same."""

    def __init__(self, name: str) -> None:
        # No tag within an action: of "<a>up <a>down</a>" the action is "down", and the search stays linear.
        self._pattern = re.compile(rf"<{name}>((?:(?!</?{name}>).)*)</{name}>", re.IGNORECASE | re.DOTALL)

    def action_in(self, text: str) -> str | None:
        """The action without the white space around it; None where the text holds no complete tag."""
        found: list[str] = self._pattern.findall(text)
        return found[-1].strip() if found else None


def message_text(response: Response) -> str:
    """What the model wrote for the reader in this turn: the text of all its messages, without reasoning."""
    return "".join(_texts(item) for item in response["output"] if item.get("type") == "message")


def with_message(response: Response, text: str) -> Response:
    """The same response with one message, `text`, as its whole output."""
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
