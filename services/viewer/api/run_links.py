"""Addresses in the page, for the marks of charts; `link` in `static/route.js` writes the same ones."""

from __future__ import annotations

from urllib.parse import urlencode


class RunLinks:
    """Places of one run (`rollyard.services.charts.links.Links`)."""

    def __init__(self, run: int) -> None:
        self._run = f"#/runs/{run}"

    def rollouts(self, **filters: str | float) -> str:
        """The list of rollouts, filtered."""
        written = {name: value if isinstance(value, str) else f"{value:.12g}" for name, value in filters.items()}
        return f"{self._run}?{urlencode(written)}"

    def task(self, task: int) -> str:
        """All repeats of a task."""
        return f"{self._run}/tasks/{task}"
