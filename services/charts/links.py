"""Where marks lead, in a page that has such places."""

from __future__ import annotations

from typing import Protocol


class Links(Protocol):
    """Addresses in one run's pages."""

    def rollouts(self, **filters: str | float) -> str:
        """The list of rollouts, filtered."""
        ...

    def task(self, task: int) -> str:
        """The page of one task."""
        ...
