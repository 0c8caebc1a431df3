"""The interface for the links of a chart's marks."""

from __future__ import annotations

from typing import Protocol


class Links(Protocol):
    """URLs of one run's pages."""

    def rollouts(self, **filters: str | float) -> str:
        """Return the URL of the rollout list with these filters."""
        ...

    def task(self, task: int) -> str:
        """Return the URL of a task's page."""
        ...
