"""Defines the interface that provides the URLs of a chart's links."""

from __future__ import annotations

from typing import Protocol


class Links(Protocol):
    """Provides the URLs of one run's pages."""

    def rollouts(self, **filters: str | float) -> str:
        """Return the URL of the rollout list with these filters applied."""
        ...

    def task(self, task: int) -> str:
        """Return the URL of the list of a task's rollouts."""
        ...
