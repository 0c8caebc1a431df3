"""The interface for the links of a chart's marks."""

from __future__ import annotations

from typing import Protocol


class Links(Protocol):
    """Addresses of one run's pages."""

    def rollouts(self, **filters: str | float) -> str:
        """Return the address of the filtered list of rollouts."""
        ...

    def task(self, task: int) -> str:
        """Return the address of a task's page."""
        ...
