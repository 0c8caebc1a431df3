"""MessageLog: keeps warnings, which would destroy the page if they were written to the terminal."""

from __future__ import annotations

import logging
from collections import deque

from rollyard.analysis.browse.text.visible import visible_line

_MAX_MESSAGES = 20


class MessageLog(logging.Handler):
    """Thread-safe. The app takes the messages and shows them."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self._messages: deque[str] = deque(maxlen=_MAX_MESSAGES)

    def emit(self, record: logging.LogRecord) -> None:
        self._messages.append(visible_line(record.getMessage()))

    def take(self) -> list[str]:
        """Return the messages since the last call."""
        found: list[str] = []
        while self._messages:
            found.append(self._messages.popleft())
        return found
